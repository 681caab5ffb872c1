"""Every internal of vLLM and transformers that this project overrides or reads, and where it is in vLLM's V2 runner.

Places in V2 are those of vLLM 0.33, whose default it is; models give it their hooks by `get_model_state_cls`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from omni_cli.core.compat.torchvision import import_with_torchaudio

RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
LOADER = "vllm.model_executor.model_loader.default_loader:DefaultModelLoader"
QWEN3_OMNI = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe"
HIGGS_CODEC = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
PARSERS = "tool_parser_name, reasoning_parser_name, enable_auto_tools, is_harmony, tool_strict_level, tokenizer"
POSITIONS = (
    "input_ids, image_grid_thw, video_grid_thw, attention_mask, use_audio_in_video, audio_seqlens, second_per_grids"
)

# By what a name in vLLM or transformers begins with: the rest of it, with the parameters of a callable or the members
# of a class that must be there, and what we do with them.
SEAMS: dict[str, dict[str, str]] = {
    "": {
        "torch._C._profiler:_RecordFunctionFast(__enter__, __exit__)": "marks modules in traces",
        "torch.cuda:_compile_kernel(kernel_source, kernel_name, cuda_include_dirs, nvcc_options)": (
            "compiles `frame.cu`"
        ),
        "torch.cuda._utils:_CudaKernel(__call__, set_shared_memory_config)": "launches it",
        "torch.utils.cpp_extension:CUDA_HOME": "is set where there is no toolkit, whose headers it does not need",
        "torch._functorch._activation_checkpointing.graph_info_provider:nx": "is imported when it is used",
        "torch._inductor.codecache:torch_key": "is called once for all stages, in a fork",
        "torch._inductor.codecache:triton_key": "is called once for all stages",
        "torch._inductor.runtime.compile_tasks:_set_triton_ptxas_path": (
            "is called, so that Triton's kernels have one assembler whether or not Inductor compiles"
        ),
        "torch.utils._python_dispatch:TorchDispatchMode.__torch_dispatch__(func, types, args, kwargs)": (
            "sees every product of a reference"
        ),
        "transformers.cache_utils:Cache.__init__(layers)": "holds a piece's keys and values",
        "transformers.cache_utils:Cache.update(key_states, value_states, layer_idx)": "is what `KeyValueCache` has",
        "transformers.cache_utils:DynamicSlidingWindowLayer.update(key_states, value_states)": (
            "keeps those of the window and returns all"
        ),
        "transformers.conversion_mapping:get_model_conversion_mapping(model)": "names a codec's weights",
        "transformers.convert_slow_tokenizer:import_protobuf": "reads a tokenizer.model's normalizer",
        "transformers.core_model_loading:rename_source_key(source_key, weight_renamings, weight_converters)": (
            "names a codec's weights"
        ),
        "transformers.models.mimi.modeling_mimi:MimiModel.decode(audio_codes)": "decodes a piece",
        "transformers.tokenization_utils_tokenizers:TokenizersBackend(backend_tokenizer, add_bos_token)": (
            "has the tokenizer of tokenizer.json"
        ),
        "vllm.models.deepseek_v4.common.eplb_util:dspark_draft_supports_eplb": "is imported when it is called",
        "vllm:ModelRegistry(models, register_model)": "is where our model classes go",
    },
    "diffusers.pipelines.glm_image.pipeline_glm_image:GlmImagePipeline.": {
        "__call__(image, prior_token_ids, prior_token_image_ids, source_image_grid_thw)": "is the decoder",
        "get_glyph_texts(prompt)": "is called for the texts whose length is limited",
    },
    "transformers.models.csm.modeling_csm:CsmDecoderLayer.": {
        "forward(hidden_states, attention_mask, past_key_values, position_embeddings)": "is the depth decoder's layer",
    },
    "transformers.models.glm_image.modeling_glm_image:": {
        "GlmImageVQVAE.encode(hidden_states)": "makes tokens of the prior's images",
        "GlmImageVisionModel.forward(pixel_values, grid_thw)": "encodes the prior's images",
    },
    "transformers.models.higgs_audio_v2.generation_higgs_audio_v2:": {
        "HiggsAudioV2DelayPatternLogitsProcessor.__call__(input_ids, scores)": "is what `DelayedFrames` does",
        "HiggsAudioV2GenerationMixin._get_logits_processor": "is followed by the reference's own",
    },
    "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer:HiggsAudioV2TokenizerModel.": {
        "decode(audio_codes)": "makes samples",
        "encode(input_values)": "makes codes of recordings",
    },
    "transformers.models.mimi.modeling_mimi:MimiTransformerModel.": {
        "forward(hidden_states, attention_mask, position_ids, past_key_values)": (
            "is given keys and values, and the mask that fits them"
        ),
    },
    "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:": {
        f"Qwen2_5OmniTalkerForConditionalGeneration.get_rope_index({POSITIONS})": "computes the talker's positions",
        "Qwen2_5OmniToken2WavBigVGANModel.forward(mel_spectrogram)": "makes a chunk's samples",
        "RungeKutta4ODESolver.integrate(time_points)": "integrates a chunk's frames",
    },
    "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavDiTModel.": {
        "forward(hidden_states, condition_vector, speaker_embedding, quantized_code, time_step, apply_cfg)": (
            "denoises the frames of a chunk"
        ),
    },
    "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavModel.": {
        "forward(code, conditioning, reference_mel, num_steps, guidance_scale, sway_coefficient)": "is token2wav",
    },
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VLModel.": {
        "get_rope_index(input_ids, mm_token_type_ids, video_grid_thw)": (
            "is wrapped, so that text begins after a video in the reference"
        ),
    },
    "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe:": {
        "Qwen3OmniMoeCode2WavTransformerModel.forward(inputs_embeds, attention_mask, position_ids, past_key_values)": (
            "is given keys and values, and the mask that fits them"
        ),
        "Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_llm_pos_ids_for_vision": "`get_rope_index` calls it",
        f"Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index({POSITIONS})": (
            "computes the talker's positions"
        ),
        "Qwen3OmniMoeTalkerResizeMLP.forward(hidden_state)": "projects the talker's input embeddings",
    },
    "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe:Qwen3OmniMoeTalkerCodePredictorDecoderLayer.": {
        "forward(hidden_states, attention_mask, past_key_values, position_embeddings)": "is the code predictor's layer",
    },
    "transformers.models.whisper.tokenization_whisper:WhisperTokenizer.": {
        "_decode_asr(model_outputs, return_timestamps, return_language, time_precision)": "reads the words of a sound",
    },
    "transformers.models.whisper.generation_whisper:WhisperGenerationMixin.": {
        "_retrieve_compression_ratio(tokens, vocab_size)": "is called for each window",
        "_retrieve_segment(seek_sequence, seek_num_frames, time_offset)": "is called for each window, and noted",
        "generate_with_fallback(decoder_input_ids, seek, logits_processor, stopping_criteria)": "runs a window",
    },
    "transformers.models.vibevoice.modeling_vibevoice:": {
        "VibeVoiceDiffusionHead.forward(noisy_images, timesteps, condition)": "denoises latents",
        "VibeVoiceModel.get_audio_features(input_values)": "is done with a generator of the request's",
    },
    "transformers.models.vibevoice_acoustic_tokenizer.modeling_vibevoice_acoustic_tokenizer:": {
        "VibeVoiceAcousticTokenizerConv1dPaddingCache.update(hidden_states, cache_key, conv_module)": (
            "is what `ConvolutionCache` has"
        ),
        "VibeVoiceAcousticTokenizerDecoderModel.forward(hidden_states, padding_cache)": "makes samples",
        "VibeVoiceAcousticTokenizerEncoderModel.forward(hidden_states, padding_cache)": "hears voices and speech",
    },
    "transformers.tokenization_utils_base:PreTrainedTokenizerBase.": {
        "_from_pretrained(resolved_vocab_files, pretrained_model_name_or_path)": (
            "is overridden to give tokenizers the ids of their files"
        ),
    },
    "vllm.": {
        "compilation.cuda_graph:CUDAGraphEntry(cudagraph)": "is there once a graph was captured",
        "compilation.cuda_graph:CUDAGraphWrapper(_all_instances)": "names all wrappers",
        "compilation.decorators:support_torch_compile(dynamic_arg_dims)": "compiles the prior's decoder",
        "config.compilation:CompilationConfig(static_forward_context)": "names attention layers and caches",
        "config.load:LoadConfig(load_format)": "names the loader of weights",
        "config.model:ModelConfig": "is passed on by it",
        "config.scheduler:SchedulerConfig.get_scheduler_cls": (
            "returns our `make_scheduler`, which is called with `vllm_config=...` like a class"
        ),
        "config:CUDAGraphMode(NONE)": "shows whether a step is a replay",
        "config:CacheConfig(kv_cache_memory_bytes, gpu_memory_utilization)": "are a stage's budget",
        "config:CompilationMode(NONE)": "shows whether the code predictor is compiled",
        "config:ParallelConfig(distributed_executor_backend)": "is read",
        "config:ParallelConfig(worker_extension_cls)": "adds the prior's `image_tokens` to our worker",
        "config:VllmConfig.with_hf_config(hf_config, architectures)": "is called for the prior's decoder",
        "config:get_current_vllm_config": "is called while a layer is built",
        "distributed.parallel_state:GroupCoordinator(is_first_rank, is_last_rank)": "are read",
        "distributed:get_pp_group": "is called for this rank's place in the pipeline",
        "distributed:get_tp_group": "is called for this rank's place beside others",
        "engine.arg_utils:EngineArgs(enable_lora, max_loras, lora_target_modules, enable_mixed_moe_lora_format)": (
            "keeps adapters loaded"
        ),
        "engine.arg_utils:EngineArgs(mm_device_do_normalize)": "is off: the encoder would normalize videos as images",
        "engine.arg_utils:EngineArgs(model, worker_cls, scheduler_cls, hf_overrides)": "is an engine",
        "entrypoints.generate.base.protocol:DeltaToolCall(index, id, function)": "is a piece of a call",
        "exceptions:VLLMClientError": "is a refused request",
        "exceptions:VLLMValidationError": "is a refused constraint",
        "forward_context:BatchDescriptor(num_tokens)": "shows which graph is replayed",
        "forward_context:ForwardContext(cudagraph_runtime_mode, batch_descriptor)": "show whether a step is a replay",
        "forward_context:get_forward_context": "is called in a forward pass",
        "logprobs:Logprob(logprob, decoded_token)": "is of a token",
        "lora.model_manager:LoRAModelManager.get_adapter(adapter_id)": "is called for an adapter's modules",
        "lora.request:LoRARequest(lora_name, lora_int_id, lora_path, is_3d_lora_weight)": "is a request's adapter",
        "multimodal:MULTIMODAL_REGISTRY.register_processor(processor, info, dummy_inputs)": (
            "is how a model gets its processor"
        ),
        "outputs:CompletionOutput(text, token_ids, logprobs, stop_reason)": "is one answer's part",
        "outputs:PoolingRequestOutput(outputs, finished, request_id)": "is a step's tensor",
        "outputs:RequestOutput(outputs, finished, request_id, prompt_token_ids, prompt_logprobs)": "is a step's text",
        "parser.abstract_parser:DelegatingParser(tool_parser_cls)": "parses calls that a grammar forces",
        "parser.abstract_parser:Parser(tool_parser_cls, reasoning_parser_cls)": "is a model's parser",
        "parser.parser_manager:ParserManager": "finds a parser by its names",
        f"parser.parser_manager:ParserManager.get_parser({PARSERS})": "is called for a checkpoint's parser",
        "platforms:current_platform(is_cpu, device_type)": "names the device",
        "plugins:load_general_plugins": "is called before an engine is configured",
        "pooling_params:PoolingParams(extra_kwargs)": "carries our payloads",
        "reasoning:ReasoningParser(reasoning_start_str, vocab, count_reasoning_tokens)": "counts tokens of reasoning",
        "reasoning:ReasoningParser.count_reasoning_tokens(token_ids)": "is called for all tokens that were generated",
        "reasoning:ReasoningParserManager(list_registered)": "names the parsers of reasoning",
        "inputs.llm:TextPrompt(multi_modal_data, multi_modal_uuids)": "names a window of a sound",
        "renderers.base:BaseRenderer.get_mm_processor": "is called for what the model takes",
        "renderers.base:BaseRenderer.render_cmpl(prompts, tok_params)": "is called to tokenize and preprocess a prompt",
        "renderers.base:BaseRenderer.render_messages(messages, params)": "is called for the chat template",
        "renderers.hf:HfRenderer(default_cmpl_tok_params, default_chat_tok_params)": "are for a prompt",
        "renderers.hf:HfRenderer(get_tokenizer)": "shows whether there may be no chat template",
        "renderers.hf:resolve_chat_template(tokenizer, chat_template, tools, model_config)": (
            "is called to see whether there is a chat template"
        ),
        "renderers.inputs.preprocess:parse_model_prompt(model_config, prompt)": "is called for a transcription",
        "renderers:ChatParams(chat_template_kwargs)": "goes to the chat template",
        "renderers:TokenizeParams(max_total_tokens, add_special_tokens)": (
            "are changed for a prompt that is only tokenized"
        ),
        "sequence:IntermediateTensors(tensors, __getitem__)": "is what pipeline ranks send, with our rows",
        "renderers.hf:_try_get_processor_chat_template(tokenizer)": "is replaced where a model has no processor",
        "renderers.hf:maybe_make_thread_pool(tokenizer, copies)": "is called for one copy",
        "tokenizers:cached_tokenizer_from_config(model_config)": "has a Whisper's marks for its rules",
        "tool_parsers:ToolParser(adjust_request)": "forces calls by a grammar, as JSON",
        "tool_parsers:ToolParserManager(list_registered)": "names the parsers of calls",
        "triton_utils.dispatcher:_rebind_kernels(overrides)": "looks through vLLM's modules alone",
        "transformers_utils.processor:get_video_processor_cls_name_from_config(processor_name, revision)": (
            "names the processor of a checkpoint"
        ),
        "v1.core.kv_cache_manager:KVCacheManager(usage)": "is read for a profile",
        "v1.core.sched.async_scheduler:AsyncScheduler(schedule)": "is derived from",
        "v1.core.sched.request_queue:RequestQueue.prepend_request(request)": "is called on waiting requests",
        "v1.core.sched.request_queue:RequestQueue.remove_requests(requests)": "is called on waiting requests",
        "v1.engine.detokenizer:BaseIncrementalDetokenizer.decode_next(next_token_id)": "is replaced on a request's own",
        "v1.engine.detokenizer:IncrementalDetokenizer.num_output_tokens": "is called",
        "v1.engine.llm_engine:LLMEngine.abort_request(request_ids)": "is called",
        "v1.engine.llm_engine:LLMEngine.add_lora(lora_request)": "loads an adapter",
        "v1.engine.llm_engine:LLMEngine.add_request(request_id, prompt, params)": "is called",
        "v1.engine.llm_engine:LLMEngine.collective_rpc(method, args)": "is called on all ranks",
        "v1.engine.llm_engine:LLMEngine.from_engine_args(engine_args)": "is called",
        "v1.engine.llm_engine:LLMEngine.sleep(level, mode)": "gives a sleeping stage's memory back",
        "v1.engine.llm_engine:LLMEngine.wake_up(tags)": "wakes a stage",
        "v1.engine.output_processor:OutputProcessorOutput(request_outputs)": "is what `process_outputs` returns",
        "v1.engine:EngineCoreOutput(new_token_ids, finished, num_nans_in_logits)": "are read",
        "v1.engine:EngineCoreOutput(request_id, pooling_output)": "are read and written",
        "v1.outputs:AsyncModelRunnerOutput(get_output)": "is derived from, to add payloads",
        "v1.outputs:AsyncModelRunnerOutput.get_output": "is overridden to wait for payloads, too",
        "v1.outputs:ModelRunnerOutput(req_ids, req_id_to_index, sampled_token_ids, pooler_output)": (
            "are read and written"
        ),
        "v1.outputs:SamplerOutput(sampled_token_ids)": "is what codes are predicted from",
        "v1.request:Request(num_tokens_with_spec)": "is read",
        "v1.sample.logits_processor.interface:LogitsProcessor.is_argmax_invariant": (
            "is overridden: the rules change greedy tokens"
        ),
        "v1.sample.logits_processor:AdapterLogitsProcessor.new_req_logits_processor(params)": (
            "is overridden with transformers' rules for Whisper"
        ),
        "v1.structured_output.backend_types:StructuredOutputGrammar": "is what they compile to",
        "v1.structured_output.backend_types:StructuredOutputOptions(JSON)": "names the kind of a constraint",
        "v1.structured_output.backend_xgrammar:XgrammarBackend(vllm_config, tokenizer, vocab_size, compile_grammar)": (
            "is the backend of tags of tool calls"
        ),
        "v1.structured_output.request:StructuredOutputRequest(params, reasoning_ended, reasoning_parser_kwargs)": (
            "are read, and written as vLLM's own server does"
        ),
        "utils.mem_utils:MemorySnapshot(device)": "is taken by a GPU's worker, once stacks are small",
        "v1.worker.cpu_model_runner:CPUModelRunner.initialize_kv_cache(kv_cache_allocation_context)": (
            "is overridden as the GPU runner's, and to allocate memory as it is used"
        ),
        "v1.worker.cpu_model_runner:CPUModelRunner.load_model": "is overridden as the GPU runner's",
        "v1.worker.cpu_worker:CPUWorker.compile_or_warm_up_model": "is overridden to mark what loading does",
        "v1.worker.cpu_worker:CPUWorker.determine_available_memory": "is overridden to mark what loading does",
        "v1.worker.cpu_worker:CPUWorker.init_device": "is overridden to build our runner",
        "v1.worker.cpu_worker:CPUWorker.load_model": "is overridden to choose kernels of experts",
        "v1.worker.gpu_input_batch:CachedRequestState(block_ids)": "are where a request's rows are kept",
        "v1.worker.gpu_input_batch:CachedRequestState(mrope_positions, mrope_position_delta)": "came with a request",
        "v1.worker.gpu_model_runner:ExecuteModelState(hidden_states, scheduler_output)": "are read",
        "v1.worker.gpu_model_runner:ExecuteModelState(sample_hidden_states)": "is what codes are predicted from",
        "v1.worker.gpu_worker:Worker._maybe_get_memory_pool_context(tag)": "holds the branches' cache, too",
        "v1.worker.gpu_worker:Worker.compile_or_warm_up_model": "is overridden to mark what loading does",
        "v1.worker.gpu_worker:Worker.determine_available_memory": "is overridden to mark what loading does",
        "v1.worker.gpu_worker:Worker.init_device": "is overridden to build our runner, and for small stacks",
        "v1.worker.gpu_worker:Worker.initialize_from_config": "is overridden to mark what loading does",
        "v1.worker.gpu_worker:Worker.load_model": "is overridden to mark what loading does",
    },
    "vllm.config.speech_to_text:": {
        "SpeechToTextConfig(sample_rate, max_audio_clip_s, overlap_chunk_second, min_energy_split_window_size)": (
            "describes the window"
        ),
        "SpeechToTextParams(audio, stt_config, model_config, language, task_type, to_language, request_prompt)": (
            "are what a transcription's prompt is made of"
        ),
    },
    "vllm.entrypoints.openai.chat_completion.protocol:": {
        "ChatCompletionRequest(tools, tool_choice, parallel_tool_calls, structured_outputs, chat_template_kwargs)": (
            "is what a parser of replies looks at"
        ),
        "ChatCompletionRequest.resolve_reasoning_ended(parser, prompt_token_ids)": (
            "is called for the token from which a grammar binds"
        ),
    },
    "vllm.model_executor.": {
        "layers.layernorm:RMSNorm.__init__(hidden_size, eps)": "is Higgs Audio's for sound",
        "layers.linear:ReplicatedLinear(input_size, output_size)": "projects the talker's rows",
        "layers.logits_processor:LogitsProcessor.forward(lm_head, hidden_states)": "makes logits of a smaller head",
        "layers.pooler:DispatchPooler(poolers_by_task)": "lets tensors of a diffusion through",
        "layers.pooler:IdentityPooler(get_supported_tasks)": "lets them through unchanged",
        "layers.rotary_embedding:get_rope(head_size, max_position, is_neox_style, rope_parameters)": (
            "makes the prior's rotary embedding"
        ),
        "layers.vocab_parallel_embedding:ParallelLMHead(num_embeddings, embedding_dim, quant_config, prefix)": (
            "is the head"
        ),
        "model_loader.base_loader:_get_online_quantization_config(vllm_config)": "is called for quantized weights",
        "model_loader:get_model_cls(model_config)": "is called for the interface of transcription",
        "model_loader:register_model_loader(load_format)": "names that loader",
        "models.glm4:Glm4DecoderLayer.__init__(vllm_config, prefix, config)": "is the prior's",
        "models.interfaces:IsAttentionFree(is_attention_free)": "marks a model without KV cache",
        "models.interfaces:StreamingTranscriptionPostProcessor.process_delta(self, text_delta, finished)": (
            "is called for each piece of a transcript's text"
        ),
        "models.interfaces:SupportsMRoPE.get_mrope_input_positions(input_tokens, mm_features)": (
            "is overridden: positions come with the request, else are those of text"
        ),
        "models.interfaces:SupportsPP(supports_pp, forward)": "marks models for pipeline ranks",
        "models.kimi_audio:KimiAudioForConditionalGeneration.__init__(vllm_config, prefix)": (
            "is extended: nothing is loaded into its encoder's bias of keys"
        ),
        "models.kimi_audio:KimiAudioForConditionalGeneration.embed_input_ids(multimodal_embeddings, is_multimodal)": (
            "is overridden: it takes the first sound of a step alone"
        ),
        "models.interfaces:SupportsTranscription(supports_transcription_only, validate_language)": (
            "tells who transcribes, and in which languages"
        ),
        "models.interfaces:SupportsTranscription(supports_diarized_transcription)": "tells who tells speakers",
        "models.interfaces:SupportsTranscription.parse_diarized_transcript(text)": "is called for their parts",
        "models.registry:_MULTIMODAL_MODELS": "is read as text for an architecture's module and class",
        "models.llama:LlamaDecoderLayer.__init__(vllm_config, prefix, config)": "is the talker's layer",
        "models.llama:LlamaDecoderLayer.forward(positions, hidden_states, residual)": "runs with parts of two modules",
        "models.llama:LlamaMLP.__init__(hidden_size, intermediate_size, hidden_act, quant_config, bias, prefix)": (
            "is Higgs Audio's for sound"
        ),
        "models.llama:LlamaModel.__init__(vllm_config, prefix)": "is CSM's backbone",
        "models.qwen2:Qwen2Attention.forward(positions, hidden_states)": "is done per branch",
        "models.qwen2:Qwen2DecoderLayer.forward(residual)": "is done per branch",
        "models.qwen2_5_omni_thinker:Qwen2_5OmniThinkerMultiModalProcessor._get_hf_mm_inputs(mm_items, hf_kwargs)": (
            "leaves audio as it is"
        ),
        "models.qwen2_5_omni_thinker:Qwen2_5OmniThinkerMultiModalProcessor._postprocess_hf_mm_data(processed_data)": (
            "is Qwen3-Omni's too: it takes the features as transformers computes them"
        ),
        "models.qwen3_asr:Qwen3ASRForConditionalGeneration(vllm_config, prefix)": (
            "is derived from, to fill up its encoder's windows"
        ),
        "models.qwen3:Qwen3Model.__init__(vllm_config, prefix)": "is the model of Qwen3-TTS's talker",
        "models.qwen3_moe:Qwen3MoeModel.__init__(vllm_config, prefix)": "is the talker's model",
        "models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerDummyInputsBuilder.get_dummy_text(mm_counts)": (
            "makes the text that the processor needs"
        ),
        "models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerProcessingInfo.get_hf_processor": "describes the processor",
        "models.registry:_LazyRegisteredModel.load_model_cls": "is called to inspect a model class in this process",
        "models.registry:_RegisteredModel": "is a class that vLLM need not inspect again",
        "models.utils:AutoWeightsLoader.load_weights(weights, mapper)": "loads a model whose predictor loads itself",
        "models.utils:PPMissingLayer": "is a part that another rank has",
        "models.utils:WeightsMapper(orig_to_new_prefix, __or__)": "names weights",
        "models.utils:make_empty_intermediate_tensors_factory(keys, hidden_size)": (
            "makes room for the rows that the thinker's ranks send"
        ),
        "models.utils:maybe_prefix(prefix, name)": "names modules",
    },
    "vllm.model_executor.layers.fused_moe.config:": {
        "FusedMoEConfig(num_experts, experts_per_token, hidden_dim, intermediate_size, w13_num_shards)": (
            "are the sizes of a mixture of experts, for a profile"
        ),
    },
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.": {
        "Source.__init__(model_or_path, revision, prefix)": "is the folder of Higgs Audio's codec",
        "_get_weights_iterator(source)": "is overridden to give weights their released names",
        "_prepare_weights(model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides)": (
            "is overridden to leave out files that are not the model's"
        ),
        "create_model(vllm_config, model_config)": "is overridden to fill memory that is not initialised",
        "get_all_weights(model_config, model)": "is called to look for NaN in a checkpoint",
        "load_weights(model, model_config)": "is overridden to find weights that are missing",
        "track_weights_loading(model, loaded_weights)": "is overridden to collect what it reports",
    },
    "vllm.model_executor.models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerForConditionalGeneration.": {
        "embed_multimodal(kwargs)": "is overridden to pad audio to the longest of its request",
        "forward(input_ids, positions, intermediate_tensors, inputs_embeds)": "is overridden to keep a layer's rows",
        "set_aux_hidden_state_layers(layers)": "is called with the layer that the talker listens to",
    },
    "vllm.model_executor.models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerMultiModalProcessor.": {
        "_get_hf_mm_inputs(mm_items)": "is overridden: it pads audio",
        "_postprocess_hf_mm_data(processed_data)": "is overridden: it counts padding",
    },
    "vllm.model_executor.models.whisper:WhisperEncoderAttention.": {
        "forward_cpu(query, key, value, cu_seqlens)": "is overridden with the kernel of `CPU_ATTN`",
        "register_oot(name)": "has vLLM make our layer",
    },
    "vllm._custom_ops:": {
        "cpu_attention_with_kv_cache(query, key_cache, value_cache, output, query_start_loc, seq_lens, block_table)": (
            "is called for a sound's rows"
        ),
        "cpu_attn_get_scheduler_metadata(num_reqs, num_heads, num_kv_heads, head_dim, seq_lens, enable_kv_split)": (
            "plans that"
        ),
        "cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, isa)": "fills a block",
    },
    "vllm.v1.attention.backends.cpu_attn:": {
        "CPUAttentionBackend.get_supported_head_sizes": "tells what the kernel is for",
        "_get_attn_isa(dtype, block_size, head_size)": "chooses its instructions",
    },
    "vllm.model_executor.models.whisper:WhisperForConditionalGeneration.": {
        "get_generation_prompt(stt_params)": "is called for a prompt, whose text is changed",
        "get_language_detection_prompt(audio, stt_config)": "is called to detect a language",
        "get_speech_to_text_config(model_config, task_type)": "is called for the window",
    },
    "vllm.multimodal.": {
        "hasher:MultiModalHasher.hash_kwargs(algorithm, kwargs)": "is called for ids of media with a request's salt",
        "inputs:MultiModalFieldElem(data)": "holds the frames of a window, which are put in",
        "inputs:MultiModalFieldConfig.build_elems(key, batch)": "is called for that",
        "inputs:MultiModalFieldConfig.shared(modality, batch_size, keep_on_cpu)": (
            "has vLLM batch no audio of different padding"
        ),
        "media:MediaConnector.fetch_video(video_url, video_processor)": "is called for the frames",
        "video:VideoLoader._prepare_source(source)": "is called before that",
        "video:VideoLoader.compute_frames_index_to_sample(source, target)": (
            "is called with numbers of frames, and its code is asked for the options that it reads"
        ),
        "video:decode_video(backend, loader_cls, data, target, sampling_kwargs, backend_kwargs, frame_recovery)": (
            "is replaced, so that vLLM's loaders choose frames of a video that we decode"
        ),
        "video:get_video_loader_backend_for_processor(video_processor)": "names a loader",
        "video_decoders:VideoSourceMetadata(total_frames_num, original_fps, duration)": "describes a video to them",
    },
    "vllm.parser.abstract_parser:DelegatingParser.": {
        "adjust_request(request)": "is called to force calls of tools",
        "is_reasoning_end(input_ids)": "shows whether a grammar began",
        "parse_delta(delta_text, delta_token_ids, request, prompt_token_ids, finished)": (
            "is called with each piece of an answer"
        ),
    },
    "vllm.sampling_params:": {
        "RequestOutputKind(DELTA)": "is how outputs come",
        "SamplingParams(extra_args)": "carries our payloads",
        "SamplingParams._validate_structured_outputs(model_config, structured_outputs_config, tokenizer)": (
            "is overridden to check a constraint for the backend that it will have"
        ),
        "StructuredOutputsParams(json, json_object, regex, choice, grammar, structural_tag)": "binds text to a grammar",
        "_MAX_TEMP": "is what it raises lower temperatures to",
    },
    "vllm.v1.core.sched.output:": {
        "NewRequestData(prompt_token_ids)": "is counted",
        "NewRequestData(req_id, sampling_params, pooling_params)": "are read",
        "SchedulerOutput(preempted_req_ids)": "are counted",
        "SchedulerOutput(scheduled_new_reqs, finished_req_ids, num_scheduled_tokens, scheduled_spec_decode_tokens)": (
            "are read"
        ),
        "SchedulerOutput(total_num_scheduled_tokens)": "is read, and rows are attached",
    },
    "vllm.v1.core.sched.scheduler:Scheduler.": {
        "_update_after_schedule(scheduler_output)": "is overridden to schedule a diffusion until it has an output",
        "schedule": "is overridden to leave out requests without rows",
        "update_from_output(scheduler_output)": "is overridden to know of steps under way",
    },
    "vllm.v1.engine.output_processor:OutputProcessor.": {
        "add_request(request)": "is overridden to note what each token adds to the text",
        "process_outputs(engine_core_outputs)": "is overridden to take hidden states off",
    },
    "vllm.v1.sample.ops.topk_topp_sampler:": {
        "TopKTopPSampler.forward_native(logits, generators)": "samples on a CPU as transformers does",
        "apply_top_k_top_p(logits, k, p)": "is called for the codes after a frame's first",
    },
    "vllm.v1.structured_output.backend_guidance:": {
        "GuidanceBackend(vllm_config, tokenizer, vocab_size, is_tokenizer_supported)": "is the backend of schemas",
        "GuidanceBackend.compile_grammar(request_type, grammar_spec, stop_token_ids)": (
            "is overridden to pass tags, choices, regular expressions and EBNF to xgrammar"
        ),
        "GuidanceGrammar(ll_matcher, terminated)": "are read",
        "GuidanceGrammar.accept_tokens(request_id, tokens)": (
            "is overridden to fail an answer that ends before its grammar"
        ),
    },
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.": {
        "_calc_mrope_positions(scheduler_output)": "is overridden for such positions after the prompt",
        "_dummy_run": "is overridden to take Triton's cache back from a run that compiles",
        "_dummy_sampler_run(hidden_states)": "is overridden where nothing is measured",
        "_init_mrope_positions(req_state)": "is overridden to take positions that came with a request",
        "_model_forward(input_ids, positions, intermediate_tensors, inputs_embeds)": (
            "is overridden to fill the talker's input embeddings and to run a diffusion"
        ),
        "_pool(hidden_states)": "is overridden to hand one tensor per request out",
        "_sample(logits)": "is overridden to predict the other codes of a frame",
        "_update_states(scheduler_output)": "is overridden to decode request payloads",
        "capture_model": "is overridden to note which graphs there are and what they took",
        "get_model": "is called for the loaded model",
        "initialize_kv_cache(kv_cache_config)": "is overridden to keep rows of cached blocks",
        "load_model": "is overridden to find the diffusion's entry point and who fills input embeddings",
        "sample_tokens(grammar_output)": "is overridden to attach hidden states",
    },
}

# Set in the bodies of vLLM's own methods, so that only their source can tell; of some, the order counts.
SOURCES: dict[str, dict[str, list[str]]] = {
    "": {
        "vllm.compilation.cuda_graph:CUDAGraphWrapper.__init__": [
            "self.runtime_mode",
            "self.concrete_cudagraph_entries",
            "_all_instances.add(self)",
        ],
        "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator.__init__": ["self.dist_module"],
        "vllm.distributed.device_communicators.cpu_communicator:_CPUSHMDistributed.__init__": ["self.group_name"],
        "vllm.distributed.device_communicators.shm_broadcast:MessageQueue.__init__": ["self.buffer = ShmRingBuffer("],
        "vllm.distributed.device_communicators.shm_broadcast:ShmRingBuffer.__del__": [
            "if self.is_creator:",
            "self.shared_memory.unlink()",
        ],
        "vllm.distributed.parallel_state:GroupCoordinator.__init__": ["self.device_communicator"],
        "vllm.lora.lora_model:LoRAModel.from_local_checkpoint": ['f" but received {unexpected_modules}."'],
        "vllm.lora.model_manager:LoRAModelManager.__init__": ["self.modules"],
        "vllm.lora.peft_helper:PEFTHelper._match_pattern": [
            "for key, value in pattern.items()",
            're.match(rf"(.*\\.)?({key})$", name)',
        ],
        "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager.create_lora_manager": ["self._adapter_manager ="],
        "vllm.multimodal.utils:_can_batch_mm_items": ["isinstance(left_field, MultiModalSharedField)"],
        "vllm.utils.gc_utils:freeze_gc_for_cudagraph_capture": ["gc.freeze()", "gc.unfreeze()", "gc.collect()"],
        "vllm.v1.core.sched.scheduler:Scheduler": ["preempted_req_ids=self.reset_preempted_req_ids"],
        "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.__init__": ["self.cudagraph_mode"],
        "vllm.v1.engine.core:EngineCore.__init__": [
            "self.structured_output_manager",
            "self.scheduler",
            "scheduler_config.get_scheduler_cls()",
        ],
        "vllm.v1.engine.core_client:InprocClient.__init__": ["self.engine_core"],
        "vllm.v1.engine.input_processor:InputProcessor.__init__": ["self.generation_config_fields"],
        "vllm.v1.engine.llm_engine:LLMEngine.__init__": [
            "self.renderer",
            "self.output_processor = OutputProcessor(",
            "self.engine_core",
        ],
        "vllm.v1.engine.output_processor:OutputProcessor.__init__": ["self.request_states"],
        "vllm.v1.engine.output_processor:RequestState.__init__": ["self.external_req_id", "self.detokenizer"],
        "vllm.v1.request:Request.__init__": [
            "self.structured_output_request",
            "self.prompt_token_ids",
            "self.next_decode_eligible_step",
            "self.num_output_placeholders",
        ],
        "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.__init__": ["self.forward = self.forward_cpu"],
        "vllm.v1.sample.sampler:Sampler.__init__": ["self.topk_topp_sampler"],
        "vllm.v1.structured_output.backend_guidance:GuidanceBackend.__post_init__": ["self.ll_tokenizer"],
        "vllm.v1.structured_output:StructuredOutputManager.__init__": ["self.backend", "self.tokenizer"],
        "vllm.v1.structured_output:StructuredOutputManager.grammar_init": ["if self.backend is None:"],
        "vllm.tracing.otel:init_otel_tracer": ["if not _IS_OTEL_AVAILABLE:"],  # its imports may be missing
        "vllm.triton_utils.dispatcher:_rebind_kernels": ["in list(sys.modules.values())"],
        "vllm.v1.worker.utils:allocate_kv_cache": ["torch.zeros(buf_size, dtype=torch.int8"],
        "vllm.v1.worker.cpu_worker:CPUWorker.init_device": ["self.model_runner = CPUModelRunner("],
        "vllm.v1.worker.gpu_input_batch:CachedRequestState.__post_init__": ["self.num_prompt_tokens"],
        "vllm.v1.worker.gpu_input_batch:InputBatch.__init__": [
            "self.num_computed_tokens_cpu",
            "self.req_id_to_index",
            "self.generators: dict[int, torch.Generator] = {}",
        ],
        "vllm.v1.worker.gpu_worker:Worker._init_workspace_and_model_runner": ["self._make_model_runner()"],
        "vllm.v1.worker.gpu_worker:Worker.init_device": ["init_snapshot = MemorySnapshot(device=self.device)"],
        "vllm.v1.worker.gpu_worker:Worker._make_model_runner": [
            "from vllm.v1.worker.gpu_model_runner import GPUModelRunner as GPUModelRunnerV1",
            "return GPUModelRunnerV1(",
        ],
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.load_lora_model": [
            "self.lora_manager =",
            "support LoRA",
        ],
    },
    "transformers.models.": {
        "csm.modeling_csm:CsmCodebooksHead.__init__": ["self.weight"],
        "csm.modeling_csm:CsmDepthDecoderModel.__init__": [
            "self.layers",
            "self.norm",
            "self.rotary_emb",
            "self.inputs_embeds_projector",
            "self.embed_tokens",
        ],
        "mimi.modeling_mimi:MimiConv1d.__init__": ["self.conv", "self.causal", "self.pad_mode"],
        "mimi.modeling_mimi:MimiConvTranspose1d.__init__": ["self.conv", "self.causal", "self.trim_right_ratio"],
        "mimi.modeling_mimi:MimiModel.__init__": ["self.upsample", "self.decoder_transformer"],
        "mimi.modeling_mimi:MimiTransformerModel.__init__": ["self.rotary_emb"],
        "qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavDiTModel.__init__": [
            "self.block_size",
            "self.repeats",
            "self.mel_dim",
        ],
        "qwen3_omni_moe.modeling_qwen3_omni_moe:Qwen3OmniMoeCode2WavTransformerModel.__init__": ["self.rotary_emb"],
    },
    "vllm.model_executor.layers.": {
        "attention.attention:Attention.__init__": [
            "self.num_heads",
            "self.num_kv_heads",
            "self.head_size",
            "self.layer_name",
        ],
        "fused_moe.layer:FusedMoEFactory": ["moe_config = FusedMoEConfig(", "is_lora_enabled="],
        "fused_moe.routed_experts:RoutedExperts.__init__": ["self.moe_config"],
        "linear:LinearBase.__init__": ["self.input_size", "self.output_size"],
        "vocab_parallel_embedding:VocabParallelEmbedding.__init__": ["self.num_embeddings", "self.embedding_dim"],
    },
    "vllm.model_executor.models.": {
        "glm4:Glm4Attention.__init__": ["self.rotary_emb = get_rope(", "self.head_dim"],
        "glm4:Glm4ForCausalLM": ["self.model(", "self.logits_processor(self.lm_head", "mapper=self.hf_to_vllm_mapper"],
        "llama:LlamaModel": [
            "layer_type: type[nn.Module]",
            "self.make_empty_intermediate_",
            "self.embed_tokens",
            "self.make_empty_intermediate_tensors",
        ],
        "qwen2:Qwen2Model": ["decoder_layer_type", "self.embed_tokens", '".k_proj": (".qkv_proj", "k")'],
        "qwen3_moe:Qwen3MoeModel": ["self.embed_tokens", "self.make_empty_intermediate_tensors", "hf_to_vllm_mapper"],
        "qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerForConditionalGeneration._parse_and_validate_audio_input": [
            '"input_audio_features"',
            '"audio_feature_lengths"',
            '"feature_attention_mask"',
        ],
        "utils:AutoWeightsLoader._load_param": [
            '"weight_loader", default_weight_loader)',
            "weight_loader(param, weight_",
        ],
        "utils:WeightsMapper.apply": ["shard_data.shard_id = one_shard_id"],
    },
    "vllm.v1.core.sched.scheduler:Scheduler.": {
        "__init__": ["self.requests", "self.waiting", "self.current_step", "self.kv_cache_manager"],
        "schedule": ["self.current_step += 1", "self.current_step < request.next_decode_eligible_step"],
    },
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.": {
        "__init__": [
            "self.requests",
            "self.uses_mrope",
            "self.execute_model_state",
            "self.intermediate_tensors",
            "self.device",
            "self.speculative_config",
            "self.cudagraph_dispatcher",
            "self.discard_request_mask",
        ],
        "_bookkeeping_sync": ["self.discard_request_mask.np[:num_reqs]", "gen.set_offset(gen.get_offset()"],
        "_calc_mrope_positions": ["self.mrope_positions.cpu", "req.mrope_positions["],
        "_dummy_run": ["outputs = self.model("],
        "capture_model": ["with self._freeze_gc()"],
        "execute_model": [
            "cudagraph_runtime_mode=cudagraph_mode",
            "batch_descriptor=batch_desc",
            "self._model_forward(",
        ],
        "load_model": ["model_loader = get_model_loader(self.load_config)"],
        "profile_run": ["self._dummy_run(", "self._dummy_sampler_run("],
    },
}

OVERRIDES = [
    ("omni_cli.backends.vllm.runner_mixins", "vllm.v1.worker.gpu_model_runner"),
    ("omni_cli.backends.vllm.workers", "vllm.v1.worker.gpu_worker"),
    ("omni_cli.backends.vllm.outputs", "vllm.v1.engine.output_processor"),
    ("omni_cli.backends.vllm.schedulers", "vllm.v1.core.sched.scheduler"),
    (
        "omni_cli.models.qwen2_5_omni.token2wav.velocity",
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni",
    ),
    ("omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder", "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni"),
    ("omni_cli.models.qwen2_5_omni.stages", "vllm.model_executor.models.qwen2"),
    ("omni_cli.models.glm_image.prior_stage", "vllm.model_executor.models.glm4"),
    ("omni_cli.models.glm_image.prior_stage", "transformers.models.glm_image.modeling_glm_image"),
    ("omni_cli.models.glm_image.prompts", "transformers.models.glm_image.modeling_glm_image"),
    ("omni_cli.backends.vllm.code_runner", "vllm.v1.worker.gpu_model_runner"),
    ("omni_cli.backends.vllm.diffusion_runner", "vllm.v1.worker.gpu_model_runner"),
    ("omni_cli.models.codec.code_predictor", QWEN3_OMNI),
    ("omni_cli.models.qwen3_omni.connectors", QWEN3_OMNI),
    ("omni_cli.models.qwen3_omni.model", "vllm.model_executor.models.qwen3_moe"),
    ("omni_cli.models.qwen3_tts.model", "vllm.model_executor.models.qwen3"),
    ("omni_cli.models.qwen3_omni.model", "vllm.model_executor.models.qwen3_omni_moe_thinker"),
    ("omni_cli.models.qwen2_5_omni.token2wav.model", "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni"),
]

V2 = "vllm.v1.worker.gpu"
V2_RUNNER = f"{V2}.model_runner:GPUModelRunner"
STATE = f"{V2}.model_states.interface:ModelState"
GRAPHS = f"{V2}.cudagraph_utils:ModelCudaGraphManager"

# V1 hook: (V2 counterpart, what moves there)
MOVES = {
    "__init__": (f"{V2_RUNNER}.__init__", "payloads and counters"),
    "_update_states": (f"{STATE}.add_request", "decoding of payloads; forgetting is in `remove_request`"),
    "_init_mrope_positions": (f"{STATE}.add_request", "positions that came with a request"),
    "_calc_mrope_positions": (f"{STATE}.prepare_inputs", "such positions of tokens after the prompt"),
    "_model_forward": (f"{STATE}.prepare_inputs", "input embeddings, as inputs of the model; no graph replays a hook"),
    "sample_tokens": (f"{V2_RUNNER}.sample_tokens", "hidden states beside the tokens"),
    "_sample": (f"{V2_RUNNER}.sample", "the code predictor, after the token"),
    "_pool": (f"{V2_RUNNER}.pool", "one tensor per request of a diffusion"),
    "_dummy_run": (f"{V2_RUNNER}._dummy_run", "taking Triton's cache back"),
    "_dummy_sampler_run": (f"{V2_RUNNER}._dummy_sampler_run", "skipping it where nothing is measured"),
    "initialize_kv_cache": (f"{V2_RUNNER}.initialize_kv_cache", "rows of cached blocks"),
    "load_model": (f"{V2_RUNNER}.load_model", "the diffusion's entry point, who fills input embeddings, the loader"),
    "capture_model": (
        f"{GRAPHS}.capture",
        "captured graphs; replays are those of `run_fullgraph`, and nothing is unfrozen after it",
    ),
}

# Method of our models: (its caller in V1, its caller in V2, what of it changes)
MODEL_MOVES = {
    "load_weights": (f"{LOADER}.load_weights", f"{LOADER}.load_weights", "nothing: no part of the runner"),
    "forward": (f"{RUNNER}._model_forward", f"{V2_RUNNER}.execute_model", "nothing: buffers are filled before it"),
    "embed_input_ids": (
        f"{RUNNER}._preprocess",
        f"{V2}.model_states.default:DefaultModelState.prepare_inputs_embeds",
        "nothing: models with input embeddings add them in `forward`",
    ),
    "embed_multimodal": (
        f"{RUNNER}._execute_mm_encoder",
        f"{V2}.mm.encoder_runner:EncoderRunner.execute_mm_encoder",
        "nothing: audio is padded in it",
    ),
    "compute_logits": (f"{RUNNER}.execute_model", f"{V2_RUNNER}.sample", "nothing: ids are suppressed in it"),
    "get_mrope_input_positions": (
        f"{RUNNER}._init_mrope_positions",
        f"{V2}.mm.rope:RopeState.init_prefill_positions",
        "positions that come with a request go to `stage_write` instead",
    ),
}

# What our hooks read or set on V1's runner and its batch: (its place in V2, what changes)
READS = {
    "requests": (f"{V2}.states:RequestState", "arrays by index; `req_id_to_index` has the index of an id"),
    "uses_mrope": (f"{V2}.mm.rope:get_rope_state", "None without M-RoPE"),
    "execute_model_state": (f"{V2_RUNNER}.execute_model_state", "nothing"),
    "hidden_states": (f"{V2}.model_runner:ExecuteModelState.hidden_states", "nothing"),
    "scheduler_output": (f"{V2}.model_runner:ExecuteModelState.input_batch", "has the lengths that are read of it"),
    "sample_hidden_states": (f"{V2_RUNNER}.sample", "its argument `hidden_states`, by `logits_indices` of the batch"),
    "intermediate_tensors": (f"{V2_RUNNER}.intermediate_tensors", "nothing: always made with the model"),
    "device": (f"{V2_RUNNER}.device", "nothing"),
    "speculative_config": (f"{V2_RUNNER}.speculative_config", "nothing"),
    "cudagraph_dispatcher": (f"{V2}.cudagraph_utils:CudaGraphManager.dispatch", "the runner has no dispatcher"),
    "discard_request_mask": (f"{V2}.input_batch:InputBatch.is_prefilling_np", "the same, for unfinished prompts"),
    "num_computed_tokens_cpu": (f"{V2}.input_batch:InputBatch.num_computed_tokens_np", "nothing"),
    "req_id_to_index": (f"{V2}.states:RequestState.req_id_to_index", "nothing"),
    "generators": (f"{V2}.sample.gumbel:gumbel_sample", "seeds and positions, no generators: nothing to rewind"),
    "num_prompt_tokens": (f"{V2}.states:RequestState.prompt_len", "nothing"),
    "mrope_positions": (f"{V2}.mm.rope:RopeState.prefill_positions", "staged writes"),
    "mrope_position_delta": (f"{V2}.mm.rope:RopeState.prefill_delta", "nothing"),
    "block_ids": (f"{V2}.block_table:BlockTables", "by index, on the device"),
    "topk_topp_sampler": (f"{V2}.sample.sampler:Sampler", "Gumbel noise in a kernel, on every device"),
    "model_runner": ("vllm.v1.worker.gpu_worker:Worker._make_model_runner", "our runner derives from V2's"),
    "runtime_mode": (f"{V2}.cudagraph_utils:BatchExecutionDescriptor.cg_mode", "a part of the key of a graph"),
    "cudagraph": (f"{V2}.cudagraph_utils:CudaGraphManager.graphs", "the graph is the entry"),
    "concrete_cudagraph_entries": (f"{V2}.cudagraph_utils:CudaGraphManager.graphs", "one manager per runner"),
}


def list_seams() -> Iterator[tuple[str, list[str], str]]:
    """Yield where each seam is, the names that must be there, and what we do with it."""
    for prefix, rows in SEAMS.items():
        for row, use in rows.items():
            where, _, names = f"{prefix}{row}".removesuffix(")").partition("(")
            yield where, names.split(", ") if names else [], use


def list_sources() -> Iterator[tuple[str, list[str]]]:
    """Yield where a body is, and the parts of it that we count on."""
    for prefix, rows in SOURCES.items():
        for row, parts in rows.items():
            yield f"{prefix}{row}", parts


def imported(module: str) -> Any:
    """Import a module; transformers' codec of Higgs Audio as we do."""
    return import_with_torchaudio(module) if module in HIGGS_CODEC else importlib.import_module(module)


def find(where: str) -> Any:
    """Return the module, class or function at `where`; `AssertionError` with one sentence if it is gone."""
    module, _, path = where.partition(":")
    try:
        found: Any = imported(module)
    except ImportError as error:
        raise AssertionError(f"{where} is gone: {error}") from error
    for name in path.split("."):
        assert hasattr(found, name), f"{where} is gone{near(name, dir(found))}"
        found = getattr(found, name)
    return found


def change_in_place(where: str) -> str | None:
    """Return a sentence if there is no such name, class variable or attribute set by a class, else None."""
    owner, _, name = where.rpartition("." if "." in where.partition(":")[2] else ":")
    kind = importlib.import_module(owner) if ":" not in owner else find(owner)
    if hasattr(kind, name) or name in getattr(kind, "__annotations__", ()):
        return None
    if inspect.isclass(kind) and f"self.{name}" in inspect.getsource(kind):
        return None
    return f"{where}, which the note names, is gone{near(name, dir(kind))}"


def near(name: str, names: Any) -> str:
    """Return the end of a sentence: the names most like one that is gone."""
    like = difflib.get_close_matches(name, sorted(set(names)), n=3)
    return f"; near it: {', '.join(like)}" if like else ""


def change_in(where: str, names: list[str], use: str) -> str | None:
    """Return a sentence about the parameters or members that are gone, None if none is."""
    target = find(where)
    known: set[str] = set()
    if not inspect.isroutine(target):
        known.update(
            dir(target), getattr(target, "__annotations__", None) or (), getattr(target, "_fields", None) or ()
        )
    if set(names) - known:
        known |= set(inspect.signature(target).parameters)
    missing = [name for name in names if name not in known]
    return f"{where} ({use}) has no {', '.join(missing)} any more{near(missing[0], known)}" if missing else None


def change_in_source(where: str, parts: list[str]) -> str | None:
    """Return a sentence about the parts of a body that are gone, None if none is."""
    source = inspect.getsource(find(where))
    missing = [part for part in parts if part not in source]
    if not missing:
        return None
    names = near(missing[0].removeprefix("self."), re.findall(r"[A-Za-z_]+", source))
    return f"{where}: `{'`, `'.join(missing)}` is used by us, and is gone{names}"
