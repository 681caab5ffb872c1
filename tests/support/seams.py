"""Every internal of vLLM and transformers that this project overrides or reads, and where it is in vLLM's V2 runner.

Places in V2 are those of vLLM 0.33, whose default it is; models give it their hooks by `get_model_state_cls`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from typing import Any

from omni_cli.core.compat.torchvision import import_with_torchaudio

RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
LOADER = "vllm.model_executor.model_loader.default_loader:DefaultModelLoader"

QWEN3_OMNI = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe"
THINKER_2_5 = "vllm.model_executor.models.qwen2_5_omni_thinker:Qwen2_5OmniThinkerMultiModal"
THINKER_3 = "vllm.model_executor.models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinker"
THINKER = "vllm.model_executor.models.qwen3_omni_moe_thinker:Qwen3OmniMoeThinkerForConditionalGeneration"
WHISPER = "vllm.model_executor.models.whisper:WhisperForConditionalGeneration"
SAMPLER = "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler"
VIBEVOICE = "transformers.models.vibevoice.modeling_vibevoice"
VIBEVOICE_CODEC = (
    "transformers.models.vibevoice_acoustic_tokenizer.modeling_vibevoice_acoustic_tokenizer:VibeVoiceAcousticTokenizer"
)
HIGGS = "transformers.models.higgs_audio_v2.generation_higgs_audio_v2"
HIGGS_CODEC = (
    "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer:HiggsAudioV2TokenizerModel"
)
CSM = "transformers.models.csm.modeling_csm"
CODE2WAV = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe:Qwen3OmniMoeCode2WavTransformerModel"

# (where, parameters that must be there, what we do with it)
CALLABLES = [
    ("vllm.v1.engine.llm_engine:LLMEngine.sleep", ["level", "mode"], "gives a sleeping stage's memory back"),
    ("vllm.v1.engine.llm_engine:LLMEngine.wake_up", ["tags"], "wakes a stage"),
    (
        "vllm.parser.parser_manager:ParserManager.get_parser",
        [
            "tool_parser_name",
            "reasoning_parser_name",
            "enable_auto_tools",
            "is_harmony",
            "tool_strict_level",
            "tokenizer",
        ],
        "is called for the parser of a checkpoint's replies",
    ),
    (
        "vllm.parser.abstract_parser:DelegatingParser.parse_delta",
        ["delta_text", "delta_token_ids", "request", "prompt_token_ids", "finished"],
        "is called with each piece of an answer",
    ),
    ("vllm.parser.abstract_parser:DelegatingParser.adjust_request", ["request"], "is called to force calls of tools"),
    ("vllm.parser.abstract_parser:DelegatingParser.is_reasoning_end", ["input_ids"], "shows whether a grammar began"),
    (
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.resolve_reasoning_ended",
        ["parser", "prompt_token_ids"],
        "is called for the token from which a grammar binds",
    ),
    (
        "vllm.sampling_params:SamplingParams._validate_structured_outputs",
        ["model_config", "structured_outputs_config", "tokenizer"],
        "is overridden to check a constraint for the backend that it will have",
    ),
    (
        "vllm.v1.structured_output.backend_guidance:GuidanceBackend.compile_grammar",
        ["request_type", "grammar_spec", "stop_token_ids"],
        "is overridden to pass tags, choices, regular expressions and EBNF to xgrammar",
    ),
    (
        "vllm.v1.structured_output.backend_guidance:GuidanceGrammar.accept_tokens",
        ["request_id", "tokens"],
        "is overridden to fail an answer that ends before its grammar",
    ),
    (f"{RUNNER}._update_states", ["scheduler_output"], "is overridden to decode request payloads"),
    (f"{RUNNER}._init_mrope_positions", ["req_state"], "is overridden to take positions that came with a request"),
    (f"{RUNNER}._calc_mrope_positions", ["scheduler_output"], "is overridden for such positions after the prompt"),
    (
        f"{RUNNER}._model_forward",
        ["input_ids", "positions", "intermediate_tensors", "inputs_embeds"],
        "is overridden to fill the talker's input embeddings and to run a diffusion",
    ),
    (f"{RUNNER}._pool", ["hidden_states"], "is overridden to hand one tensor per request out"),
    (f"{RUNNER}.sample_tokens", ["grammar_output"], "is overridden to attach hidden states"),
    (f"{RUNNER}._sample", ["logits"], "is overridden to predict the other codes of a frame"),
    (f"{RUNNER}.initialize_kv_cache", ["kv_cache_config"], "is overridden to keep rows of cached blocks"),
    (f"{RUNNER}._dummy_run", [], "is overridden to take Triton's cache back from a run that compiles"),
    (f"{RUNNER}._dummy_sampler_run", ["hidden_states"], "is overridden where nothing is measured"),
    (f"{RUNNER}.load_model", [], "is overridden to find the diffusion's entry point and who fills input embeddings"),
    (f"{RUNNER}.capture_model", [], "is overridden to note which graphs there are and what they took"),
    (f"{RUNNER}.get_model", [], "is called for the loaded model"),
    (f"{LOADER}.create_model", ["vllm_config", "model_config"], "is overridden to fill memory that is not initialised"),
    (f"{LOADER}.load_weights", ["model", "model_config"], "is overridden to find weights that are missing"),
    (f"{LOADER}.track_weights_loading", ["model", "loaded_weights"], "is overridden to collect what it reports"),
    (f"{LOADER}.get_all_weights", ["model_config", "model"], "is called to look for NaN in a checkpoint"),
    (
        f"{LOADER}._prepare_weights",
        ["model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides"],
        "is overridden to leave out files that are not the model's",
    ),
    (f"{LOADER}._get_weights_iterator", ["source"], "is overridden to give weights their released names"),
    ("vllm.model_executor.model_loader:register_model_loader", ["load_format"], "names that loader"),
    (
        "vllm.model_executor.model_loader.weight_utils:default_weight_loader",
        ["param", "loaded_weight"],
        "loads a code predictor",
    ),
    (
        "torch._inductor.runtime.compile_tasks:_set_triton_ptxas_path",
        [],
        "is called, so that Triton's kernels have one assembler whether or not Inductor compiles",
    ),
    ("torch._inductor.codecache:torch_key", [], "is called once for all stages"),
    ("torch._inductor.codecache:triton_key", [], "is called once for all stages"),
    ("vllm.v1.worker.cpu_model_runner:CPUModelRunner.load_model", [], "is overridden as the GPU runner's"),
    ("vllm.v1.worker.cpu_model_runner:CPUModelRunner.initialize_kv_cache", [], "is overridden as the GPU runner's"),
    ("vllm.v1.worker.cpu_worker:CPUWorker.determine_available_memory", [], "is overridden to mark what loading does"),
    ("vllm.v1.worker.cpu_worker:CPUWorker.compile_or_warm_up_model", [], "is overridden to mark what loading does"),
    ("vllm.v1.outputs:AsyncModelRunnerOutput.get_output", [], "is overridden to wait for payloads, too"),
    ("vllm.v1.worker.gpu_worker:Worker.load_model", [], "is overridden to mark what loading does"),
    ("vllm.v1.worker.gpu_worker:Worker.determine_available_memory", [], "is overridden to mark what loading does"),
    ("vllm.v1.worker.gpu_worker:Worker.initialize_from_config", [], "is overridden to mark what loading does"),
    ("vllm.v1.worker.gpu_worker:Worker._maybe_get_memory_pool_context", ["tag"], "holds the branches' cache, too"),
    ("vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model", [], "is overridden to mark what loading does"),
    ("vllm.v1.worker.gpu_worker:Worker.init_device", [], "is overridden to build our runner"),
    ("vllm.v1.worker.cpu_worker:CPUWorker.init_device", [], "is overridden to build our runner"),
    ("vllm.v1.worker.cpu_worker:CPUWorker.load_model", [], "is overridden to choose kernels of experts"),
    (
        "transformers.tokenization_utils_base:PreTrainedTokenizerBase._from_pretrained",
        ["resolved_vocab_files", "pretrained_model_name_or_path"],
        "is overridden to give tokenizers the ids of their files",
    ),
    (
        "vllm.engine.arg_utils:EngineArgs",
        ["enable_lora", "max_loras", "lora_target_modules", "enable_mixed_moe_lora_format"],
        "keeps adapters loaded",
    ),
    (
        "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
        ["engine_core_outputs"],
        "is overridden to take hidden states off",
    ),
    (
        "vllm.v1.engine.output_processor:OutputProcessor.add_request",
        ["request"],
        "is overridden to note what each token adds to the text",
    ),
    (
        "vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer.decode_next",
        ["next_token_id"],
        "is replaced on a request's own detokenizer",
    ),
    (
        "vllm.reasoning:ReasoningParser.count_reasoning_tokens",
        ["token_ids"],
        "is called for all tokens that were generated",
    ),
    (
        "vllm.v1.engine.detokenizer:IncrementalDetokenizer.num_output_tokens",
        [],
        "is called",
    ),
    ("vllm.v1.engine.llm_engine:LLMEngine.add_request", ["request_id", "prompt", "params"], "is called"),
    ("vllm.v1.engine.llm_engine:LLMEngine.abort_request", ["request_ids"], "is called"),
    ("vllm.v1.engine.llm_engine:LLMEngine.from_engine_args", ["engine_args"], "is called"),
    ("vllm.v1.engine.llm_engine:LLMEngine.collective_rpc", ["method", "args"], "is called on all ranks"),
    ("vllm.v1.engine.llm_engine:LLMEngine.add_lora", ["lora_request"], "loads an adapter"),
    ("vllm.lora.model_manager:LoRAModelManager.get_adapter", ["adapter_id"], "is called for an adapter's modules"),
    (
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        [],
        "is overridden to leave out requests without rows",
    ),
    (
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        ["scheduler_output"],
        "is overridden to know of steps under way",
    ),
    (
        "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule",
        ["scheduler_output"],
        "is overridden to schedule a diffusion until it has an output",
    ),
    ("vllm.v1.core.sched.request_queue:RequestQueue.remove_requests", ["requests"], "is called on waiting requests"),
    ("vllm.v1.core.sched.request_queue:RequestQueue.prepend_request", ["request"], "is called on waiting requests"),
    (
        "vllm.config.scheduler:SchedulerConfig.get_scheduler_cls",
        [],
        "returns our `make_scheduler`, which is called with `vllm_config=...` like a class",
    ),
    (
        "vllm.renderers.base:BaseRenderer.render_cmpl",
        ["prompts", "tok_params"],
        "is called to tokenize and preprocess a prompt",
    ),
    ("vllm.renderers.base:BaseRenderer.render_messages", ["messages", "params"], "is called for the chat template"),
    (
        "vllm.renderers.inputs.preprocess:parse_model_prompt",
        ["model_config", "prompt"],
        "is called for a transcription's prompt",
    ),
    (
        "vllm.multimodal.video:decode_video",
        ["backend", "loader_cls", "data", "target", "sampling_kwargs", "backend_kwargs", "frame_recovery"],
        "is replaced, so that vLLM's loaders choose frames of a video that we decode",
    ),
    (
        "vllm.multimodal.video:VideoLoader.compute_frames_index_to_sample",
        ["source", "target"],
        "is called with numbers of frames, and its code is asked for the options that it reads",
    ),
    (
        "vllm.multimodal.video_decoders:VideoSourceMetadata",
        ["total_frames_num", "original_fps", "duration"],
        "describes a video to them",
    ),
    ("vllm.multimodal.video:VideoLoader._prepare_source", ["source"], "is called before that"),
    ("vllm.multimodal.video:get_video_loader_backend_for_processor", ["video_processor"], "names a loader"),
    ("vllm.multimodal.media:MediaConnector.fetch_video", ["video_url", "video_processor"], "is called for the frames"),
    (
        "vllm.transformers_utils.processor:get_video_processor_cls_name_from_config",
        ["processor_name", "revision"],
        "names the processor of a checkpoint",
    ),
    (
        "vllm.multimodal.audio:split_audio",
        [
            "audio_data",
            "sample_rate",
            "max_clip_duration_s",
            "overlap_duration_s",
            "min_energy_window_size",
        ],
        "cuts a long sound in pauses",
    ),
    (
        "vllm.model_executor.models.qwen3_asr:Qwen3ASRForConditionalGeneration",
        ["vllm_config", "prefix"],
        "is derived from, to fill up its encoder's windows",
    ),
    (
        "vllm.model_executor.model_loader:get_model_cls",
        ["model_config"],
        "is called for the interface of transcription",
    ),
    (
        "vllm.model_executor.models.interfaces:StreamingTranscriptionPostProcessor.process_delta",
        ["self", "text_delta", "finished"],
        "is called for each piece of a transcript's text",
    ),
    (f"{WHISPER}.get_speech_to_text_config", ["model_config", "task_type"], "is called for the window"),
    (f"{WHISPER}.get_generation_prompt", ["stt_params"], "is called for a prompt, whose text is changed"),
    (f"{WHISPER}.get_language_detection_prompt", ["audio", "stt_config"], "is called to detect a language"),
    (f"{WHISPER}.get_language_token_ids", ["tokenizer"], "is called to detect a language"),
    (f"{WHISPER}.parse_language_detection_output", ["token_ids", "tokenizer"], "is called for a detected language"),
    (
        "vllm.v1.sample.logits_processor:AdapterLogitsProcessor.new_req_logits_processor",
        ["params"],
        "is overridden with transformers' rules for Whisper",
    ),
    (
        "vllm.v1.sample.logits_processor.interface:LogitsProcessor.is_argmax_invariant",
        [],
        "is overridden: the rules change greedy tokens",
    ),
    ("vllm.renderers.base:BaseRenderer.get_mm_processor", [], "is called for what the model takes"),
    (
        "vllm.renderers.hf:resolve_chat_template",
        ["tokenizer", "chat_template", "tools", "model_config"],
        "is called to see whether there is a chat template",
    ),
    (
        "vllm.multimodal.hasher:MultiModalHasher.hash_kwargs",
        ["algorithm", "kwargs"],
        "is called for ids of media that a request's salt is part of",
    ),
    (
        "vllm.model_executor.models.registry:_LazyRegisteredModel.load_model_cls",
        [],
        "is called to inspect a model class in this process",
    ),
    (
        "vllm.model_executor.models.llama:LlamaDecoderLayer.__init__",
        ["vllm_config", "prefix", "config"],
        "is the talker's layer",
    ),
    (
        "vllm.model_executor.models.glm4:Glm4DecoderLayer.__init__",
        ["vllm_config", "prefix", "config"],
        "is the prior's",
    ),
    (
        "vllm.model_executor.layers.rotary_embedding:get_rope",
        ["head_size", "max_position", "is_neox_style", "rope_parameters"],
        "makes the prior's rotary embedding",
    ),
    ("vllm.config:VllmConfig.with_hf_config", ["hf_config", "architectures"], "is called for the prior's decoder"),
    (
        "transformers.models.glm_image.modeling_glm_image:GlmImageVisionModel.forward",
        ["pixel_values", "grid_thw"],
        "encodes the prior's images",
    ),
    (
        "transformers.models.glm_image.modeling_glm_image:GlmImageVQVAE.encode",
        ["hidden_states"],
        "makes tokens of the prior's images",
    ),
    (
        "diffusers.pipelines.glm_image.pipeline_glm_image:GlmImagePipeline.__call__",
        ["image", "prior_token_ids", "prior_token_image_ids", "source_image_grid_thw"],
        "is the decoder",
    ),
    (
        "diffusers.pipelines.glm_image.pipeline_glm_image:GlmImagePipeline.get_glyph_texts",
        ["prompt"],
        "is called for the texts whose length is limited",
    ),
    (
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavModel.forward",
        ["code", "conditioning", "reference_mel", "num_steps", "guidance_scale", "sway_coefficient"],
        "is token2wav",
    ),
    (
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavDiTModel.forward",
        ["hidden_states", "condition_vector", "speaker_embedding", "quantized_code", "time_step", "apply_cfg"],
        "denoises the frames of a chunk",
    ),
    (
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:RungeKutta4ODESolver.integrate",
        ["time_points"],
        "integrates a chunk's frames",
    ),
    (
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavBigVGANModel.forward",
        ["mel_spectrogram"],
        "makes a chunk's samples",
    ),
    (
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl:Qwen2_5_VLModel.get_rope_index",
        ["input_ids", "mm_token_type_ids", "video_grid_thw"],
        "is wrapped, so that text begins after a video in the reference",
    ),
    ("transformers.convert_slow_tokenizer:import_protobuf", [], "reads a tokenizer.model's normalizer"),
    (
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniTalkerForConditionalGeneration.get_rope_index",
        [
            "input_ids",
            "image_grid_thw",
            "video_grid_thw",
            "attention_mask",
            "use_audio_in_video",
            "audio_seqlens",
            "second_per_grids",
        ],
        "computes the talker's positions",
    ),
    (
        f"{QWEN3_OMNI}:Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index",
        [
            "input_ids",
            "image_grid_thw",
            "video_grid_thw",
            "attention_mask",
            "use_audio_in_video",
            "audio_seqlens",
            "second_per_grids",
        ],
        "computes the talker's positions",
    ),
    (
        f"{QWEN3_OMNI}:Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_llm_pos_ids_for_vision",
        [],
        "is called by `get_rope_index`",
    ),
    (f"{QWEN3_OMNI}:Qwen3OmniMoeTalkerResizeMLP.forward", ["hidden_state"], "projects the talker's input embeddings"),
    (
        f"{QWEN3_OMNI}:Qwen3OmniMoeTalkerCodePredictorDecoderLayer.forward",
        ["hidden_states", "attention_mask", "past_key_values", "position_embeddings"],
        "is the code predictor's layer",
    ),
    (f"{VIBEVOICE}:VibeVoiceDiffusionHead.forward", ["noisy_images", "timesteps", "condition"], "denoises latents"),
    (f"{VIBEVOICE}:VibeVoiceModel.get_audio_features", ["input_values"], "is done with a generator of the request's"),
    (f"{VIBEVOICE_CODEC}EncoderModel.forward", ["hidden_states", "padding_cache"], "hears voices and speech"),
    (f"{VIBEVOICE_CODEC}DecoderModel.forward", ["hidden_states", "padding_cache"], "makes samples"),
    (
        f"{VIBEVOICE_CODEC}Conv1dPaddingCache.update",
        ["hidden_states", "cache_key", "conv_module"],
        "is what `ConvolutionCache` has",
    ),
    (
        "vllm.model_executor.models.llama:LlamaDecoderLayer.forward",
        ["positions", "hidden_states", "residual"],
        "runs with norms and feed-forward networks of two modules",
    ),
    (
        "vllm.model_executor.models.llama:LlamaMLP.__init__",
        ["hidden_size", "intermediate_size", "hidden_act", "quant_config", "bias", "prefix"],
        "is Higgs Audio's for sound",
    ),
    (
        "vllm.model_executor.layers.layernorm:RMSNorm.__init__",
        ["hidden_size", "eps"],
        "is Higgs Audio's for sound",
    ),
    (
        "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p",
        ["logits", "k", "p"],
        "is called for the codes after a frame's first",
    ),
    (f"{LOADER}.Source.__init__", ["model_or_path", "revision", "prefix"], "is the folder of Higgs Audio's codec"),
    (
        f"{HIGGS}:HiggsAudioV2DelayPatternLogitsProcessor.__call__",
        ["input_ids", "scores"],
        "is what `DelayedFrames` does",
    ),
    (f"{HIGGS}:HiggsAudioV2GenerationMixin._get_logits_processor", [], "is followed by the reference's own"),
    (f"{HIGGS_CODEC}.encode", ["input_values"], "makes codes of recordings"),
    (f"{HIGGS_CODEC}.decode", ["audio_codes"], "makes samples"),
    ("vllm.model_executor.models.qwen2:Qwen2Attention.forward", ["positions", "hidden_states"], "is done per branch"),
    ("vllm.model_executor.models.qwen2:Qwen2DecoderLayer.forward", ["residual"], "is done per branch"),
    ("transformers.cache_utils:Cache.update", ["key_states", "value_states", "layer_idx"], "is what `FrameCache` has"),
    (
        f"{THINKER}.forward",
        ["input_ids", "positions", "intermediate_tensors", "inputs_embeds"],
        "is overridden to keep the rows of a layer",
    ),
    (f"{THINKER}.embed_multimodal", ["kwargs"], "is overridden to pad audio to the longest of its request"),
    (
        "vllm.multimodal.inputs:MultiModalFieldConfig.shared",
        ["modality", "batch_size", "keep_on_cpu"],
        "has vLLM batch no audio of different padding",
    ),
    ("vllm.multimodal.inputs:MultiModalFieldConfig.build_elems", ["key", "batch"], "is called for that"),
    (f"{THINKER_2_5}Processor._get_hf_mm_inputs", ["mm_items", "hf_kwargs"], "leaves audio as it is"),
    (
        f"{THINKER_2_5}Processor._postprocess_hf_mm_data",
        ["processed_data"],
        "is Qwen3-Omni's too: it takes the features as transformers computes them",
    ),
    (f"{THINKER_3}MultiModalProcessor._get_hf_mm_inputs", ["mm_items"], "is overridden: it pads audio"),
    (
        f"{THINKER_3}MultiModalProcessor._postprocess_hf_mm_data",
        ["processed_data"],
        "is overridden: it counts padding",
    ),
    (f"{THINKER_3}ProcessingInfo.get_hf_processor", [], "describes the processor"),
    (f"{THINKER_3}DummyInputsBuilder.get_dummy_text", ["mm_counts"], "makes the text that the processor needs"),
    (
        "vllm.multimodal:MULTIMODAL_REGISTRY.register_processor",
        ["processor", "info", "dummy_inputs"],
        "is how a model gets its processor",
    ),
    (f"{THINKER}.set_aux_hidden_state_layers", ["layers"], "is called with the layer that the talker listens to"),
    ("vllm.model_executor.models.qwen3_moe:Qwen3MoeModel.__init__", ["vllm_config", "prefix"], "is the talker's model"),
    ("vllm.model_executor.models.llama:LlamaModel.__init__", ["vllm_config", "prefix"], "is CSM's backbone"),
    (
        f"{CSM}:CsmDecoderLayer.forward",
        ["hidden_states", "attention_mask", "past_key_values", "position_embeddings"],
        "is the depth decoder's layer",
    ),
    ("transformers.models.mimi.modeling_mimi:MimiModel.decode", ["audio_codes"], "decodes a piece"),
    (
        "transformers.models.mimi.modeling_mimi:MimiTransformerModel.forward",
        ["hidden_states", "attention_mask", "position_ids", "past_key_values"],
        "is given keys and values, and the mask that fits them",
    ),
    (
        f"{CODE2WAV}.forward",
        ["inputs_embeds", "attention_mask", "position_ids", "past_key_values"],
        "is given keys and values, and the mask that fits them",
    ),
    ("transformers.cache_utils:Cache.__init__", ["layers"], "holds a piece's keys and values"),
    (
        "transformers.cache_utils:DynamicSlidingWindowLayer.update",
        ["key_states", "value_states"],
        "keeps those of the window and returns all",
    ),
    ("transformers.conversion_mapping:get_model_conversion_mapping", ["model"], "names a codec's weights"),
    (
        "transformers.core_model_loading:rename_source_key",
        ["source_key", "weight_renamings", "weight_converters"],
        "names a codec's weights",
    ),
    (f"{SAMPLER}.forward_native", ["logits", "generators"], "samples on a CPU as transformers does"),
]

# (where, fields that must be there, what we do with them)
FIELDS = [
    (
        "vllm.v1.structured_output.request:StructuredOutputRequest",
        ["params", "reasoning_ended", "reasoning_parser_kwargs"],
        "are read, and written as vLLM's own server does",
    ),
    ("vllm.v1.structured_output.backend_guidance:GuidanceGrammar", ["ll_matcher", "terminated"], "are read"),
    ("vllm.v1.worker.gpu_model_runner:ExecuteModelState", ["hidden_states", "scheduler_output"], "are read"),
    ("vllm.v1.worker.gpu_model_runner:ExecuteModelState", ["sample_hidden_states"], "is what codes are predicted from"),
    ("vllm.v1.outputs:SamplerOutput", ["sampled_token_ids"], "is what codes are predicted from"),
    (
        "vllm.v1.outputs:ModelRunnerOutput",
        ["req_ids", "req_id_to_index", "sampled_token_ids", "pooler_output"],
        "are read and written",
    ),
    (
        "vllm.v1.core.sched.output:SchedulerOutput",
        ["scheduled_new_reqs", "finished_req_ids", "num_scheduled_tokens", "scheduled_spec_decode_tokens"],
        "are read",
    ),
    ("vllm.v1.core.sched.output:SchedulerOutput", ["preempted_req_ids"], "are counted"),
    (
        "vllm.forward_context:ForwardContext",
        ["cudagraph_runtime_mode", "batch_descriptor"],
        "show whether a step is a replay",
    ),
    ("vllm.compilation.cuda_graph:CUDAGraphWrapper", ["_all_instances"], "names all wrappers"),
    ("vllm.compilation.cuda_graph:CUDAGraphEntry", ["cudagraph"], "is there once a graph was captured"),
    ("vllm.distributed.parallel_state:GroupCoordinator", ["is_first_rank", "is_last_rank"], "are read"),
    ("vllm.config:ParallelConfig", ["distributed_executor_backend"], "is read"),
    ("vllm.config:ParallelConfig", ["worker_extension_cls"], "adds the prior's `image_tokens` to our worker"),
    (
        "vllm.v1.worker.gpu_input_batch:CachedRequestState",
        ["mrope_positions", "mrope_position_delta"],
        "are positions that came with a request",
    ),
    ("vllm.v1.core.sched.output:NewRequestData", ["req_id", "sampling_params", "pooling_params"], "are read"),
    ("vllm.v1.core.sched.output:NewRequestData", ["prompt_token_ids"], "is counted"),
    (
        "vllm.v1.core.sched.output:SchedulerOutput",
        ["total_num_scheduled_tokens"],
        "is read, and rows are attached",
    ),
    ("vllm.v1.request:Request", ["num_tokens_with_spec"], "is read"),
    ("vllm.v1.engine:EngineCoreOutput", ["request_id", "pooling_output"], "are read and written"),
    ("vllm.v1.engine:EngineCoreOutput", ["new_token_ids", "finished", "num_nans_in_logits"], "are read"),
    ("vllm.v1.worker.gpu_input_batch:CachedRequestState", ["block_ids"], "are where a request's rows are kept"),
    ("vllm.sampling_params:SamplingParams", ["extra_args"], "carries our payloads"),
    ("vllm.pooling_params:PoolingParams", ["extra_kwargs"], "carries our payloads"),
    ("vllm.v1.core.kv_cache_manager:KVCacheManager", ["usage"], "is read for a profile"),
    ("vllm.config.compilation:CompilationConfig", ["static_forward_context"], "names attention layers and caches"),
    ("vllm.config:CacheConfig", ["kv_cache_memory_bytes", "gpu_memory_utilization"], "are a stage's budget"),
    (
        "vllm.model_executor.layers.fused_moe.config:FusedMoEConfig",
        ["num_experts", "experts_per_token", "hidden_dim", "intermediate_size", "w13_num_shards"],
        "are the sizes of a mixture of experts, for a profile",
    ),
    ("torch._C._profiler:_RecordFunctionFast", ["__enter__", "__exit__"], "marks modules in traces"),
]

# Set in the bodies of vLLM's own methods, so that only their source can tell.
ATTRIBUTES = [
    ("vllm.v1.structured_output:StructuredOutputManager.__init__", ["self.backend", "self.tokenizer"]),
    ("vllm.v1.structured_output:StructuredOutputManager.grammar_init", ["if self.backend is None:"]),
    ("vllm.v1.structured_output.backend_guidance:GuidanceBackend.__post_init__", ["self.ll_tokenizer"]),
    ("vllm.v1.engine.core:EngineCore.__init__", ["self.structured_output_manager", "self.scheduler"]),
    ("vllm.v1.core.sched.scheduler:Scheduler.__init__", ["self.requests"]),
    ("vllm.v1.request:Request.__init__", ["self.structured_output_request", "self.prompt_token_ids"]),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.__init__",
        ["self.requests", "self.uses_mrope", "self.execute_model_state", "self.intermediate_tensors"],
    ),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.__init__",
        ["self.device", "self.speculative_config", "self.cudagraph_dispatcher"],
    ),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.__init__",
        ["self.discard_request_mask"],
    ),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.load_model",
        ["model_loader = get_model_loader(self.load_config)"],
    ),
    ("vllm.v1.worker.gpu_model_runner:GPUModelRunner.capture_model", ["with self._freeze_gc()"]),
    (
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.load_lora_model",
        ["self.lora_manager =", "support LoRA"],
    ),
    ("vllm.lora.worker_manager:LRUCacheWorkerLoRAManager.create_lora_manager", ["self._adapter_manager ="]),
    ("vllm.lora.model_manager:LoRAModelManager.__init__", ["self.modules"]),
    ("vllm.lora.lora_model:LoRAModel.from_local_checkpoint", ['f" but received {unexpected_modules}."']),
    (
        "vllm.lora.peft_helper:PEFTHelper._match_pattern",
        ["for key, value in pattern.items()", 're.match(rf"(.*\\.)?({key})$", name)'],
    ),
    (
        "vllm.model_executor.layers.fused_moe.layer:FusedMoEFactory",
        ["moe_config = FusedMoEConfig(", "is_lora_enabled="],
    ),
    ("vllm.utils.gc_utils:freeze_gc_for_cudagraph_capture", ["gc.freeze()", "gc.unfreeze()", "gc.collect()"]),
    ("vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts.__init__", ["self.moe_config"]),
    ("vllm.v1.worker.gpu_worker:Worker._init_workspace_and_model_runner", ["self._make_model_runner()"]),
    (
        "vllm.v1.worker.gpu_worker:Worker._make_model_runner",
        ["from vllm.v1.worker.gpu_model_runner import GPUModelRunner as GPUModelRunnerV1", "return GPUModelRunnerV1("],
    ),
    ("vllm.v1.worker.cpu_worker:CPUWorker.init_device", ["self.model_runner = CPUModelRunner("]),
    (
        "vllm.distributed.device_communicators.shm_broadcast:ShmRingBuffer.__del__",
        ["if self.is_creator:", "self.shared_memory.unlink()"],
    ),
    ("vllm.distributed.device_communicators.shm_broadcast:MessageQueue.__init__", ["self.buffer = ShmRingBuffer("]),
    ("vllm.distributed.parallel_state:GroupCoordinator.__init__", ["self.device_communicator"]),
    ("vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator.__init__", ["self.dist_module"]),
    ("vllm.distributed.device_communicators.cpu_communicator:_CPUSHMDistributed.__init__", ["self.group_name"]),
    ("vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.__init__", ["self.cudagraph_mode"]),
    (
        "vllm.compilation.cuda_graph:CUDAGraphWrapper.__init__",
        ["self.runtime_mode", "self.concrete_cudagraph_entries", "_all_instances.add(self)"],
    ),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",
        # In this order: the runner reads the context that the forward pass will run in.
        ["cudagraph_runtime_mode=cudagraph_mode", "batch_descriptor=batch_desc", "self._model_forward("],
    ),
    ("vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run", ["outputs = self.model("]),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.profile_run",
        ["self._dummy_run(", "self._dummy_sampler_run("],  # in this order
    ),
    ("vllm.v1.worker.gpu_input_batch:InputBatch.__init__", ["self.num_computed_tokens_cpu", "self.req_id_to_index"]),
    ("vllm.v1.worker.gpu_input_batch:InputBatch.__init__", ["self.generators: dict[int, torch.Generator] = {}"]),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync",
        ["self.discard_request_mask.np[:num_reqs]", "gen.set_offset(gen.get_offset()"],
    ),
    (
        "vllm.v1.engine.llm_engine:LLMEngine.__init__",
        ["self.renderer", "self.output_processor = OutputProcessor(", "self.engine_core"],
    ),
    ("vllm.v1.engine.output_processor:OutputProcessor.__init__", ["self.request_states"]),
    ("vllm.v1.engine.output_processor:RequestState.__init__", ["self.external_req_id", "self.detokenizer"]),
    ("vllm.v1.engine.core_client:InprocClient.__init__", ["self.engine_core"]),
    ("vllm.v1.engine.core:EngineCore.__init__", ["self.scheduler", "scheduler_config.get_scheduler_cls()"]),
    (
        "vllm.v1.core.sched.scheduler:Scheduler.__init__",
        ["self.requests", "self.waiting", "self.current_step"],
    ),
    ("vllm.v1.request:Request.__init__", ["self.next_decode_eligible_step", "self.num_output_placeholders"]),
    (
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        ["self.current_step += 1", "self.current_step < request.next_decode_eligible_step"],
    ),
    (
        "transformers.models.qwen2_5_omni.modeling_qwen2_5_omni:Qwen2_5OmniToken2WavDiTModel.__init__",
        ["self.block_size", "self.repeats", "self.mel_dim"],
    ),
    ("vllm.v1.engine.input_processor:InputProcessor.__init__", ["self.generation_config_fields"]),
    ("vllm.v1.core.sched.scheduler:Scheduler.__init__", ["self.kv_cache_manager"]),
    (
        "vllm.model_executor.layers.attention.attention:Attention.__init__",
        ["self.num_heads", "self.num_kv_heads", "self.head_size", "self.layer_name"],
    ),
    ("vllm.model_executor.layers.linear:LinearBase.__init__", ["self.input_size", "self.output_size"]),
    (
        "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding.__init__",
        ["self.num_embeddings", "self.embedding_dim"],
    ),
    ("vllm.model_executor.models.qwen2:Qwen2Model", ["decoder_layer_type", "self.embed_tokens"]),
    ("vllm.model_executor.models.llama:LlamaModel", ["layer_type: type[nn.Module]", "self.make_empty_intermediate_"]),
    ("vllm.model_executor.models.glm4:Glm4Attention.__init__", ["self.rotary_emb = get_rope(", "self.head_dim"]),
    (
        "vllm.model_executor.models.glm4:Glm4ForCausalLM",
        ["self.model(", "self.logits_processor(self.lm_head", "mapper=self.hf_to_vllm_mapper"],
    ),
    ("vllm.v1.worker.gpu_input_batch:CachedRequestState.__post_init__", ["self.num_prompt_tokens"]),
    ("vllm.multimodal.utils:_can_batch_mm_items", ["isinstance(left_field, MultiModalSharedField)"]),
    (
        f"{THINKER}._parse_and_validate_audio_input",
        ['"input_audio_features"', '"audio_feature_lengths"', '"feature_attention_mask"'],
    ),
    ("vllm.v1.core.sched.scheduler:Scheduler", ["preempted_req_ids=self.reset_preempted_req_ids"]),
    (
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._calc_mrope_positions",
        ["self.mrope_positions.cpu", "req.mrope_positions["],
    ),
    (
        "vllm.model_executor.models.qwen3_moe:Qwen3MoeModel",
        ["self.embed_tokens", "self.make_empty_intermediate_tensors", "hf_to_vllm_mapper"],
    ),
    ("vllm.model_executor.models.llama:LlamaModel", ["self.embed_tokens", "self.make_empty_intermediate_tensors"]),
    (
        f"{CSM}:CsmDepthDecoderModel.__init__",
        ["self.layers", "self.norm", "self.rotary_emb", "self.inputs_embeds_projector", "self.embed_tokens"],
    ),
    (f"{CSM}:CsmCodebooksHead.__init__", ["self.weight"]),
    ("transformers.models.mimi.modeling_mimi:MimiConv1d.__init__", ["self.conv", "self.causal", "self.pad_mode"]),
    (
        "transformers.models.mimi.modeling_mimi:MimiConvTranspose1d.__init__",
        ["self.conv", "self.causal", "self.trim_right_ratio"],
    ),
    (f"{CODE2WAV}.__init__", ["self.rotary_emb"]),
    ("transformers.models.mimi.modeling_mimi:MimiModel.__init__", ["self.upsample", "self.decoder_transformer"]),
    ("vllm.v1.sample.sampler:Sampler.__init__", ["self.topk_topp_sampler"]),
    (f"{SAMPLER}.__init__", ["self.forward = self.forward_cpu"]),
    ("transformers.models.mimi.modeling_mimi:MimiTransformerModel.__init__", ["self.rotary_emb"]),
]

# Imported from vLLM: (where, parameters or members that must be there, what we do with it)
IMPORTED = [
    ("vllm:ModelRegistry", ["models", "register_model"], "is where our model classes go"),
    ("vllm.plugins:load_general_plugins", [], "is called before an engine is configured"),
    ("vllm.model_executor.models.registry:_RegisteredModel", [], "is a class that vLLM need not inspect again"),
    ("vllm.engine.arg_utils:EngineArgs", ["model", "worker_cls", "scheduler_cls", "hf_overrides"], "is an engine"),
    (
        "vllm.engine.arg_utils:EngineArgs",
        ["mm_device_do_normalize"],
        "is turned off, because the encoder would normalize videos as images",
    ),
    ("vllm.config.load:LoadConfig", ["load_format"], "names the loader of weights"),
    ("vllm.config.model:ModelConfig", [], "is passed on by it"),
    ("vllm.config:get_current_vllm_config", [], "is called while a layer is built"),
    ("vllm.config:CUDAGraphMode", ["NONE"], "shows whether a step is a replay"),
    ("vllm.config:CompilationMode", ["NONE"], "shows whether the code predictor is compiled"),
    ("vllm.forward_context:get_forward_context", [], "is called in a forward pass"),
    ("vllm.forward_context:BatchDescriptor", ["num_tokens"], "shows which graph is replayed"),
    ("vllm.platforms:current_platform", ["is_cpu", "device_type"], "names the device"),
    ("vllm.distributed:get_pp_group", [], "is called for this rank's place in the pipeline"),
    ("vllm.distributed:get_tp_group", [], "is called for this rank's place beside others"),
    ("vllm.exceptions:VLLMClientError", [], "is a refused request"),
    ("vllm.exceptions:VLLMValidationError", [], "is a refused constraint"),
    ("vllm.sampling_params:RequestOutputKind", ["DELTA"], "is how outputs come"),
    ("vllm.sampling_params:_MAX_TEMP", [], "is what it raises lower temperatures to"),
    (
        "vllm.sampling_params:StructuredOutputsParams",
        ["json", "json_object", "regex", "choice", "grammar", "structural_tag"],
        "binds text to a grammar",
    ),
    (
        "vllm.v1.structured_output.backend_guidance:GuidanceBackend",
        ["vllm_config", "tokenizer", "vocab_size", "is_tokenizer_supported"],
        "is the backend of schemas",
    ),
    (
        "vllm.v1.structured_output.backend_xgrammar:XgrammarBackend",
        ["vllm_config", "tokenizer", "vocab_size", "compile_grammar"],
        "is the backend of tags of tool calls",
    ),
    ("vllm.v1.structured_output.backend_types:StructuredOutputGrammar", [], "is what they compile to"),
    ("vllm.v1.structured_output.backend_types:StructuredOutputOptions", ["JSON"], "names the kind of a constraint"),
    (
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest",
        ["tools", "tool_choice", "parallel_tool_calls", "structured_outputs", "chat_template_kwargs"],
        "is what a parser of replies looks at",
    ),
    (
        "vllm.lora.request:LoRARequest",
        ["lora_name", "lora_int_id", "lora_path", "is_3d_lora_weight"],
        "is a request's adapter",
    ),
    ("vllm.parser.abstract_parser:Parser", ["tool_parser_cls", "reasoning_parser_cls"], "is a model's parser"),
    ("vllm.parser.abstract_parser:DelegatingParser", ["tool_parser_cls"], "parses calls that a grammar forces"),
    ("vllm.parser.parser_manager:ParserManager", [], "finds a parser by its names"),
    ("vllm.reasoning:ReasoningParserManager", ["list_registered"], "names the parsers of reasoning"),
    (
        "vllm.reasoning:ReasoningParser",
        ["reasoning_start_str", "vocab", "count_reasoning_tokens"],
        "counts tokens of reasoning",
    ),
    (
        "vllm.entrypoints.generate.base.protocol:DeltaToolCall",
        ["index", "id", "function"],
        "is a piece of a call",
    ),
    ("vllm.outputs:CompletionOutput", ["text", "token_ids", "logprobs", "stop_reason"], "is one answer's part"),
    ("vllm.tool_parsers:ToolParserManager", ["list_registered"], "names the parsers of calls"),
    ("vllm.tool_parsers:ToolParser", ["adjust_request"], "forces calls by a grammar, as JSON"),
    (
        "vllm.outputs:RequestOutput",
        ["outputs", "finished", "request_id", "prompt_token_ids", "prompt_logprobs"],
        "is a step's text",
    ),
    ("vllm.logprobs:Logprob", ["logprob", "decoded_token"], "is of a token"),
    (
        "vllm.renderers:TokenizeParams",
        ["max_total_tokens", "add_special_tokens"],
        "are changed for a prompt that is only tokenized",
    ),
    ("vllm.outputs:PoolingRequestOutput", ["outputs", "finished", "request_id"], "is a step's tensor"),
    ("vllm.renderers:ChatParams", ["chat_template_kwargs"], "goes to the chat template"),
    (
        "vllm.config.speech_to_text:SpeechToTextParams",
        ["audio", "stt_config", "model_config", "language", "task_type", "to_language", "request_prompt"],
        "are what a transcription's prompt is made of",
    ),
    (
        "vllm.config.speech_to_text:SpeechToTextConfig",
        ["sample_rate", "max_audio_clip_s", "overlap_chunk_second", "min_energy_split_window_size"],
        "describes the window",
    ),
    ("vllm.tokenizers.mistral:MistralTokenizer", ["decode"], "shows that a transcription's prompt is Mistral's"),
    ("vllm.renderers.hf:HfRenderer", ["get_tokenizer"], "shows whether there may be no chat template"),
    (
        "vllm.renderers.hf:HfRenderer",
        ["default_cmpl_tok_params", "default_chat_tok_params"],
        "are for a prompt",
    ),
    ("vllm.v1.core.sched.async_scheduler:AsyncScheduler", ["schedule"], "is derived from"),
    ("vllm.v1.engine.output_processor:OutputProcessorOutput", ["request_outputs"], "is what `process_outputs` returns"),
    ("vllm.v1.outputs:AsyncModelRunnerOutput", ["get_output"], "is derived from, to add payloads"),
    ("vllm.sequence:IntermediateTensors", ["tensors", "__getitem__"], "is what pipeline ranks send, with our rows"),
    ("vllm.compilation.decorators:support_torch_compile", ["dynamic_arg_dims"], "compiles the prior's decoder"),
    ("vllm.model_executor.layers.linear:ReplicatedLinear", ["input_size", "output_size"], "projects the talker's rows"),
    (
        "vllm.model_executor.layers.logits_processor:LogitsProcessor.forward",
        ["lm_head", "hidden_states"],
        "makes the logits of a head that is not as large as the vocabulary",
    ),
    (
        "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead",
        ["num_embeddings", "embedding_dim", "quant_config", "prefix"],
        "is the head",
    ),
    ("vllm.model_executor.layers.pooler:DispatchPooler", ["poolers_by_task"], "lets tensors of a diffusion through"),
    (
        "transformers.tokenization_utils_tokenizers:TokenizersBackend",
        ["backend_tokenizer", "add_bos_token"],
        "has the tokenizer of tokenizer.json",
    ),
    ("vllm.model_executor.layers.pooler:IdentityPooler", ["get_supported_tasks"], "lets them through unchanged"),
    ("vllm.model_executor.models.interfaces:IsAttentionFree", ["is_attention_free"], "marks a model without KV cache"),
    ("vllm.model_executor.models.interfaces:SupportsPP", ["supports_pp", "forward"], "marks models for pipeline ranks"),
    (
        "vllm.model_executor.models.interfaces:SupportsMRoPE.get_mrope_input_positions",
        ["input_tokens", "mm_features"],
        "is overridden: positions come with the request, else are those of text",
    ),
    (
        "vllm.model_executor.models.utils:AutoWeightsLoader.load_weights",
        ["weights", "mapper"],
        "loads a model whose predictor loads itself",
    ),
    ("vllm.model_executor.models.utils:WeightsMapper", ["orig_to_new_prefix", "__or__"], "names weights"),
    ("vllm.model_executor.models.utils:PPMissingLayer", [], "is a part that another rank has"),
    ("vllm.model_executor.models.utils:maybe_prefix", ["prefix", "name"], "names modules"),
    (
        "vllm.model_executor.models.utils:make_empty_intermediate_tensors_factory",
        ["keys", "hidden_size"],
        "makes room for the rows that the thinker's ranks send",
    ),
]

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


def change_in_callable(where: str, parameters: list[str], use: str) -> str | None:
    """Return a sentence about the parameters that are gone, None if none is."""
    known = inspect.signature(find(where)).parameters
    missing = [name for name in parameters if name not in known]
    return f"{where} {use}, and has no {', '.join(missing)} any more{near(missing[0], known)}" if missing else None


def change_in_fields(where: str, names: list[str], use: str) -> str | None:
    """Return a sentence about the fields that are gone, None if none is."""
    kind = find(where)
    known = (
        set(getattr(kind, "__annotations__", None) or ()) | set(getattr(kind, "_fields", None) or ()) | set(dir(kind))
    )
    if set(names) - known:
        known |= set(inspect.signature(kind).parameters)
    missing = [name for name in names if name not in known]
    return f"{where}: {', '.join(missing)} {use}, and is gone{near(missing[0], known)}" if missing else None


def change_in_source(where: str, parts: list[str]) -> str | None:
    """Return a sentence about the parts of a body that are gone, None if none is."""
    source = inspect.getsource(find(where))
    missing = [part for part in parts if part not in source]
    if not missing:
        return None
    names = near(missing[0].removeprefix("self."), re.findall(r"[A-Za-z_]+", source))
    return f"{where}: `{'`, `'.join(missing)}` is used by us, and is gone{names}"
