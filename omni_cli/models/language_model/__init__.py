"""Any language model that vLLM supports, as a model family of one stage."""
