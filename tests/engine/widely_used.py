"""A hundred text-generation models of the Hugging Face hub that are widely used, by the type that their files name.

Chosen by hand in November 2026, among those whose names stand in most tutorials, papers and engines' own lists: the
hub's counts of downloads change every day, and no ranking is claimed.
"""

from tests.engine.architectures import FAMILIES

MODELS: dict[str, str] = {
    "bloom": "bigscience/bloom-560m",
    "codegen": "Salesforce/codegen-350M-mono",
    "cohere": "CohereLabs/c4ai-command-r-v01",
    "cohere2": "CohereLabs/c4ai-command-r7b-12-2024",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-R1",
    "deepseek_v32": "deepseek-ai/DeepSeek-V3.2-Exp",
    "ernie4_5": "baidu/ERNIE-4.5-0.3B-PT",
    "exaone": "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct",
    "falcon": "tiiuae/falcon-7b-instruct",
    "falcon_mamba": "tiiuae/falcon-mamba-7b",
    "gemma": "google/gemma-2b",
    "gemma2": "google/gemma-2-2b-it google/gemma-2-9b-it",
    "gemma3_text": "google/gemma-3-270m-it google/gemma-3-1b-it",
    "glm4": "zai-org/GLM-4-9B-0414",
    "glm4_moe": "zai-org/GLM-4.5-Air",
    "glm4_moe_lite": "zai-org/GLM-4.7-Flash",
    "gpt2": "openai-community/gpt2 openai-community/gpt2-large distilbert/distilgpt2 microsoft/DialoGPT-medium",
    "gpt_bigcode": "bigcode/starcoder",
    "gpt_neo": "EleutherAI/gpt-neo-125m",
    "gpt_neox": "EleutherAI/pythia-160m EleutherAI/gpt-neox-20b",
    "gpt_oss": "openai/gpt-oss-20b openai/gpt-oss-120b",
    "gptj": "EleutherAI/gpt-j-6b",
    "granite": "ibm-granite/granite-3.1-8b-instruct",
    "granitemoehybrid": "ibm-granite/granite-4.0-h-tiny",
    "jamba": "ai21labs/AI21-Jamba-Mini-1.5",
    "lfm2": "LiquidAI/LFM2-350M LiquidAI/LFM2-1.2B",
    "llama": "huggyllama/llama-7b meta-llama/Llama-2-7b-hf meta-llama/Llama-2-7b-chat-hf "
    "codellama/CodeLlama-7b-Instruct-hf lmsys/vicuna-7b-v1.5 TinyLlama/TinyLlama-1.1B-Chat-v1.0 "
    "meta-llama/Meta-Llama-3-8B-Instruct meta-llama/Llama-3.1-8B-Instruct "
    "meta-llama/Llama-3.2-1B-Instruct meta-llama/Llama-3.2-3B-Instruct meta-llama/Llama-3.3-70B-Instruct "
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B deepseek-ai/deepseek-coder-6.7b-instruct 01-ai/Yi-1.5-9B-Chat "
    "HuggingFaceTB/SmolLM2-135M HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "mamba": "state-spaces/mamba-130m-hf",
    "minimax_m2": "MiniMaxAI/MiniMax-M2",
    "mistral": "mistralai/Mistral-7B-v0.1 mistralai/Mistral-7B-Instruct-v0.2 mistralai/Mistral-7B-Instruct-v0.3 "
    "mistralai/Mistral-Nemo-Instruct-2407 HuggingFaceH4/zephyr-7b-beta",
    "mixtral": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "mpt": "mosaicml/mpt-7b-instruct",
    "nemotron": "nvidia/Nemotron-Mini-4B-Instruct",
    "olmo": "allenai/OLMo-1B-hf",
    "olmo2": "allenai/OLMo-2-1124-7B-Instruct",
    "olmo3": "allenai/Olmo-3-7B-Instruct",
    "openai-gpt": "openai-community/openai-gpt",
    "opt": "facebook/opt-125m facebook/opt-1.3b",
    "phi": "microsoft/phi-1_5 microsoft/phi-2",
    "phi3": "microsoft/Phi-3-mini-4k-instruct microsoft/Phi-3.5-mini-instruct microsoft/Phi-4-mini-instruct "
    "microsoft/phi-4",
    "qwen2": "Qwen/Qwen1.5-0.5B-Chat Qwen/Qwen2-0.5B-Instruct Qwen/Qwen2.5-0.5B-Instruct Qwen/Qwen2.5-1.5B-Instruct "
    "Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-Coder-7B-Instruct Qwen/QwQ-32B "
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "qwen3": "Qwen/Qwen3-0.6B Qwen/Qwen3-4B-Instruct-2507 Qwen/Qwen3-8B",
    "qwen3_moe": "Qwen/Qwen3-30B-A3B-Instruct-2507 Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "qwen3_next": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "recurrent_gemma": "google/recurrentgemma-2b-it",
    "rwkv": "RWKV/rwkv-4-169m-pile",
    "smollm3": "HuggingFaceTB/SmolLM3-3B",
    "stablelm": "stabilityai/stablelm-2-1_6b",
    "starcoder2": "bigcode/starcoder2-3b",
    "t5": "google/flan-t5-base",
    # Types that exist in the code of the model's folder alone.
    "baichuan": "baichuan-inc/Baichuan2-7B-Chat",
    "chatglm": "zai-org/chatglm3-6b",
    "internlm2": "internlm/internlm2-chat-7b",
    "kimi_k2": "moonshotai/Kimi-K2-Instruct",
    "openelm": "apple/OpenELM-1_1B-Instruct",
    "qwen": "Qwen/Qwen-7B-Chat",
}
#: Published with code in the folder, beside a class that transformers has as well.
WITH_CODE = {
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V2-Lite-Chat",
    "deepseek-ai/DeepSeek-V3",
    "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct",
    "microsoft/Phi-3-mini-4k-instruct",
    "microsoft/Phi-3.5-mini-instruct",
    "microsoft/Phi-4-mini-instruct",
    "MiniMaxAI/MiniMax-M2",
    "mosaicml/mpt-7b-instruct",
    "tiiuae/falcon-7b-instruct",
}
TYPES = {name: model_type for model_type, names in MODELS.items() for name in names.split()}


def summary() -> str:
    """What the README says of them."""
    tiers = {name: FAMILIES[kind].tier if kind in FAMILIES else "foreign" for name, kind in TYPES.items()}
    served = [name for name, tier in tiers.items() if len(tier) == 1]
    ready = [name for name in served if name not in WITH_CODE]
    foreign = [name for name, tier in tiers.items() if tier == "foreign"]
    others = [name for name, tier in tiers.items() if tier != "foreign" and len(tier) > 1]
    return "\n".join(
        [
            f"| {len(ready)} | their family is tested as above | all but those below |",
            f"| {len(served) - len(ready)} | so is theirs, once `auto_map` is taken out of `config.json` | "
            f"{_listed(WITH_CODE)} |",
            f"| {len(foreign)} | refused: they run only by code in their folder | {_listed(foreign)} |",
            f"| {len(others)} | refused: encoder-decoder | {_listed(others)} |",
        ]
    )


def _listed(names: set[str] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))
