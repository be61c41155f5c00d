"""The types of the description's schemas. Written by `python -m tools.schemas`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

AllowedToolsMode: TypeAlias = Literal["auto", "required"]

class AnthropicApiError(TypedDict):
    type: Literal["api_error"]
    message: str
    code: int

class AnthropicApiFailure(TypedDict):
    type: Literal["error"]
    error: AnthropicApiError
    request_id: str

class AnthropicAuthenticationError(TypedDict):
    type: Literal["authentication_error"]
    message: str
    code: int

class AnthropicErrorDetails(TypedDict):
    error_code: Literal["thread_unsupported_request"]

class AnthropicInvalidRequestError(TypedDict):
    type: Literal["invalid_request_error"]
    message: str
    code: int
    n_prompt_tokens: NotRequired[int]
    n_prompt_tokens_is_lower_bound: NotRequired[Literal[True]]
    n_ctx: NotRequired[int]
    details: NotRequired[AnthropicErrorDetails]

class AnthropicOverloadedError(TypedDict):
    type: Literal["overloaded_error"]
    message: str
    code: int

class AnthropicPermissionError(TypedDict):
    type: Literal["permission_error"]
    message: str
    code: int

class AnthropicRateLimitError(TypedDict):
    type: Literal["rate_limit_error"]
    message: str
    code: int

class AnthropicTimeoutError(TypedDict):
    type: Literal["timeout_error"]
    message: str
    code: int

class AnthropicTooLargeError(TypedDict):
    type: Literal["request_too_large"]
    message: str
    code: int

AppliedJsonWhitespace: TypeAlias = Literal["flexible", "compact", "spaced"]

class AppliedLogitBias(TypedDict):
    token: int
    bias: float | None

AppliedReasoningFormat: TypeAlias = Literal["none", "auto", "deepseek", "deepseek-legacy"]

AppliedSampler: TypeAlias = Literal[
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "adaptive_p",
    "infill",
]

class ApplyTemplateResponse(TypedDict):
    prompt: str

class AuthenticationDetails(TypedDict):
    code: Literal[401]
    message: str
    type: Literal["authentication_error"]

class AuthenticationError(TypedDict):
    error: AuthenticationDetails

Bias: TypeAlias = float | Literal[False]

BiasedToken: TypeAlias = int | str

class BodyTooLargeDetails(TypedDict):
    code: Literal[413]
    message: str
    type: Literal["invalid_request_error"]

class BodyTooLargeError(TypedDict):
    error: BodyTooLargeDetails

CacheControl: TypeAlias = dict[str, Any]

CacheMissReason: TypeAlias = (
    Literal[
        "new",
        "edited",
        "evicted",
        "adapter",
        "key",
        "media",
        "window",
        "shift",
        "running",
        "cost",
        "disabled",
    ]
    | None
)

CallId: TypeAlias = str | int | None

class CalledCustomTool(TypedDict):
    name: str
    input: str

class CalledFunction(TypedDict):
    name: str
    arguments: str

class ChatControlRequest(TypedDict):
    id: str
    action: Literal["reasoning_end"]
    model: NotRequired[str | None]

class ChatControlResponse(TypedDict):
    success: bool
    message: NotRequired[str]

class ChatDocument(TypedDict):
    title: NotRequired[str]
    text: NotRequired[str]

class ChatFile(TypedDict):
    file_data: NotRequired[str | None]
    filename: NotRequired[str | None]
    file_id: NotRequired[str | None]

ChatFinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]

class ChatInputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int

class ChatReasoning(TypedDict):
    effort: NotRequired[str | None]
    enabled: NotRequired[bool | None]

class ChatTemplateCaps(TypedDict):
    supports_string_content: NotRequired[bool]
    supports_typed_content: NotRequired[bool]
    supports_tools: NotRequired[bool]
    supports_tool_calls: NotRequired[bool]
    supports_parallel_tool_calls: NotRequired[bool]
    supports_system_role: NotRequired[bool]
    supports_preserve_reasoning: NotRequired[bool]
    supports_reasoning_effort: NotRequired[bool]
    supports_object_arguments: NotRequired[bool]

ChatTemplateKwargs: TypeAlias = dict[str, Any]

class ChatThinking(TypedDict):
    type: NotRequired[str | None]

ChunkFinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"] | None

class ContentBlockStopEvent(TypedDict):
    type: Literal["content_block_stop"]
    index: int

class ContextSizeDetails(TypedDict):
    code: Literal[400]
    message: str
    type: Literal["exceed_context_size_error"]
    n_prompt_tokens: int
    n_prompt_tokens_is_lower_bound: NotRequired[Literal[True]]
    n_ctx: int

class ContextSizeError(TypedDict):
    error: ContextSizeDetails

ContinuedPart: TypeAlias = Literal["content", "reasoning_content"]

ConversationMetadata: TypeAlias = dict[str, Any]

class ConversationObject(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: ConversationMetadata

class CustomCallInput(TypedDict):
    name: str
    input: NotRequired[str | None]

class CustomInputDelta(TypedDict):
    name: NotRequired[str]
    input: str

class CustomToolCall(TypedDict):
    id: str
    type: Literal["custom"]
    custom: CalledCustomTool

Deadline: TypeAlias = Literal["timeout_ms", "t_max_prompt_ms"]

class DeletedConversation(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]

class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]

class DetokenizeResponse(TypedDict):
    content: str

class DeviceUse(TypedDict):
    name: str
    description: str
    n_layers: int
    model: int
    kv_cache: int
    compute: int
    draft: int

class DisabledDetails(TypedDict):
    code: Literal[403]
    message: str
    type: Literal["feature_disabled"]

class DisabledError(TypedDict):
    error: DisabledDetails

EmbeddingEncoding: TypeAlias = Literal["float", "base64"] | None

EmbeddingMediaType: TypeAlias = Literal["image_url", "input_audio", "input_video", "video_url"]

class EmbeddingTextPart(TypedDict):
    type: Literal["text"]
    text: str

EmbeddingVector: TypeAlias = list[float] | str

class FilePart(TypedDict):
    type: Literal["file"]
    file: ChatFile
    prompt_cache_breakpoint: NotRequired[Any]

class FileProgress(TypedDict):
    done: int
    total: int

FoundEntryType: TypeAlias = Literal["file", "dir"]

class FunctionArgumentsDelta(TypedDict):
    name: NotRequired[str]
    arguments: str

class FunctionCall(TypedDict):
    name: str
    arguments: str

class FunctionCallDelta(TypedDict):
    name: NotRequired[str]
    arguments: str

class FunctionCallInput(TypedDict):
    name: str
    arguments: NotRequired[Any]

FunctionChoiceMode: TypeAlias = Literal["none", "auto"] | None

class FunctionReference(TypedDict):
    name: str

class FunctionToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction

GeminiAlt: TypeAlias = Literal["sse", "json"]

GeminiArguments: TypeAlias = dict[str, Any]

class GeminiBlob(TypedDict):
    mimeType: str
    data: str
    displayName: NotRequired[str | None]

class GeminiCall(TypedDict):
    id: str
    name: str
    args: GeminiArguments

class GeminiCallPart(TypedDict):
    functionCall: GeminiCall

class GeminiCode(TypedDict):
    code: NotRequired[str | None]
    language: NotRequired[str | None]

class GeminiCodeResult(TypedDict):
    output: NotRequired[str | None]
    outcome: NotRequired[str | None]

class GeminiDeadlineExceededStatus(TypedDict):
    code: Literal[408]
    message: str
    status: Literal["DEADLINE_EXCEEDED"]

class GeminiFile(TypedDict):
    mimeType: NotRequired[str | None]
    fileUri: str
    displayName: NotRequired[str | None]

GeminiFinishReason: TypeAlias = Literal["STOP", "MAX_TOKENS", "MALFORMED_FUNCTION_CALL"]

class GeminiFunctionCallingConfig(TypedDict):
    mode: NotRequired[str | None]
    allowedFunctionNames: NotRequired[list[str] | None]

class GeminiInternalStatus(TypedDict):
    code: Literal[500]
    message: str
    status: Literal["INTERNAL"]

class GeminiInvalidArgumentStatus(TypedDict):
    code: Literal[400]
    message: str
    status: Literal["INVALID_ARGUMENT"]

GeminiMethod: TypeAlias = Literal["generateContent", "streamGenerateContent", "countTokens"]

class GeminiModel(TypedDict):
    name: str
    version: str
    displayName: str
    description: NotRequired[str]
    inputTokenLimit: NotRequired[int]
    outputTokenLimit: NotRequired[int]
    supportedGenerationMethods: list[GeminiMethod]
    temperature: float
    topP: float
    topK: int

class GeminiModelList(TypedDict):
    models: list[GeminiModel]
    nextPageToken: NotRequired[str]

class GeminiNotFoundStatus(TypedDict):
    code: Literal[404]
    message: str
    status: Literal["NOT_FOUND"]

class GeminiOtherMediaStatus(TypedDict):
    code: Literal[415]
    message: str
    status: Literal["INVALID_ARGUMENT"]

class GeminiPermissionDeniedStatus(TypedDict):
    code: Literal[403]
    message: str
    status: Literal["PERMISSION_DENIED"]

class GeminiResourceExhaustedStatus(TypedDict):
    code: Literal[429]
    message: str
    status: Literal["RESOURCE_EXHAUSTED"]

class GeminiResponsePart(TypedDict):
    inlineData: NotRequired[GeminiBlob | None]
    fileData: NotRequired[GeminiFile | None]

class GeminiServerSentEvent(TypedDict):
    data: str

class GeminiTextPart(TypedDict):
    text: str

class GeminiThinkingConfig(TypedDict):
    includeThoughts: NotRequired[bool | None]
    thinkingBudget: NotRequired[float | None]
    thinkingLevel: NotRequired[str | None]

class GeminiThoughtPart(TypedDict):
    text: str
    thought: Literal[True]

class GeminiToken(TypedDict):
    token: str
    tokenId: int
    logProbability: float

class GeminiTokenCount(TypedDict):
    totalTokens: int

class GeminiTooLargeStatus(TypedDict):
    code: Literal[413]
    message: str
    status: Literal["INVALID_ARGUMENT"]

class GeminiToolConfig(TypedDict):
    functionCallingConfig: NotRequired[GeminiFunctionCallingConfig | None]

class GeminiTopTokens(TypedDict):
    candidates: list[GeminiToken]

class GeminiUnauthenticatedStatus(TypedDict):
    code: Literal[401]
    message: str
    status: Literal["UNAUTHENTICATED"]

class GeminiUnavailableStatus(TypedDict):
    code: Literal[503]
    message: str
    status: Literal["UNAVAILABLE"]

class GeminiUnimplementedStatus(TypedDict):
    code: Literal[501]
    message: str
    status: Literal["UNIMPLEMENTED"]

class GeminiUsage(TypedDict):
    promptTokenCount: int
    cachedContentTokenCount: int
    candidatesTokenCount: int
    thoughtsTokenCount: NotRequired[int]
    totalTokenCount: int

GrammarTriggerType: TypeAlias = Literal[0, 1, 2, 3]

class Health(TypedDict):
    status: Literal["ok"]

class ImageData(TypedDict):
    data: str
    id: int

class ImageOptions(TypedDict):
    image_data: NotRequired[list[ImageData] | None]

ImageSourceType: TypeAlias = Literal["base64", "url", "file"]

class ImageUrl(TypedDict):
    url: str
    detail: NotRequired[str | None]

class InfillSnippet(TypedDict):
    filename: NotRequired[str | None]
    text: str

class InputAudio(TypedDict):
    data: str
    format: NotRequired[str | None]

class InputEmbedding(TypedDict):
    index: int
    embedding: list[list[float]]

class InputJsonDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str

InputTimeout: TypeAlias = float | None

class InputTokens(TypedDict):
    input_tokens: int

class InputUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int

class InputVideo(TypedDict):
    url: NotRequired[str]
    data: NotRequired[str]

class InvalidRequestDetails(TypedDict):
    code: Literal[400]
    message: str
    type: Literal["invalid_request_error"]
    reason: NotRequired[Literal["previous_response_not_found"]]

class InvalidRequestError(TypedDict):
    error: InvalidRequestDetails

JsonObject: TypeAlias = dict[str, Any]

JsonSchema: TypeAlias = dict[str, Any]

JsonWhitespace: TypeAlias = Literal["flexible", "compact", "spaced"] | None

KeptEvent: TypeAlias = dict[str, Any]

class KeptStream(TypedDict):
    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int

LmStudioModelState: TypeAlias = Literal["loaded", "loading", "not-loaded"]

LmStudioModelType: TypeAlias = Literal["llm", "vlm", "embeddings"]

class LoadProgress(TypedDict):
    stages: list[Literal["text_model"]]
    current: Literal["text_model"]
    value: float

class LogitBiasEntry(TypedDict):
    token: BiasedToken
    bias: Bias

LogprobsChoice: TypeAlias = float | bool | None

class LoraAdapter(TypedDict):
    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str

LoraAdapterList: TypeAlias = list[LoraAdapter]

class LoraScale(TypedDict):
    id: NotRequired[float | None]
    scale: NotRequired[float | None]

LoraScaleList: TypeAlias = list[LoraScale]

McpServer: TypeAlias = dict[str, Any]

class MediaTypeDetails(TypedDict):
    code: Literal[415]
    message: str
    type: Literal["invalid_request_error"]

class MediaTypeError(TypedDict):
    error: MediaTypeDetails

class MemoryOnDevice(TypedDict):
    device: str
    n_bytes: int

class MessageStopEvent(TypedDict):
    type: Literal["message_stop"]

class MessagesCacheCreation(TypedDict):
    ephemeral_5m_input_tokens: Literal[0]
    ephemeral_1h_input_tokens: Literal[0]

MessagesEventName: TypeAlias = Literal[
    "message_start",
    "ping",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
]

MessagesOutputSchema: TypeAlias = dict[str, Any]

class MessagesServerSentEvent(TypedDict):
    event: MessagesEventName
    data: str

MessagesStopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

class MessagesThinking(TypedDict):
    type: NotRequired[str | None]
    budget_tokens: NotRequired[int | None]
    display: NotRequired[str | None]

MessagesToolChoiceType: TypeAlias = Literal["auto", "any", "tool", "none"]

class MessagesUsage(TypedDict):
    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation: MessagesCacheCreation
    inference_geo: None
    output_tokens_details: dict[str, Any] | None
    server_tool_use: dict[str, Any] | None
    service_tier: Literal["standard"]

MirostatVersion: TypeAlias = Literal[0, 1, 2]

Modality: TypeAlias = Literal["text", "audio"]

ModelCapability: TypeAlias = Literal[
    "completion", "insert", "tools", "embedding", "rerank", "multimodal"
]

ModelChoice: TypeAlias = str | None

class ModelDetails(TypedDict):
    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str

class ModelDownload(TypedDict):
    model: str

class ModelDownloadState(TypedDict):
    file: str
    n_done: int
    n_total: int
    digest: NotRequired[str]

class ModelEventFrame(TypedDict):
    data: str

ModelEventName: TypeAlias = Literal[
    "model_status",
    "status_change",
    "download_progress",
    "download_finished",
    "download_failed",
    "model_remove",
    "models_reload",
]

class ModelMemory(TypedDict):
    need: list[MemoryOnDevice]
    use: list[MemoryOnDevice]

class ModelMeta(TypedDict):
    vocab_type: int
    n_vocab: int
    n_ctx: NotRequired[int]
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: NotRequired[str]
    description: NotRequired[str]
    license: NotRequired[str]

ModelModality: TypeAlias = Literal["text", "image", "audio"]

class ModelRequest(TypedDict):
    model: str

ModelSource: TypeAlias = Literal["shipped", "cache", "models_dir", "preset", "command_line"]

ModelState: TypeAlias = Literal["unloaded", "downloading", "loading", "loaded", "sleeping"]

class ModelSummary(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    type: Literal["model"]
    description: NotRequired[str]
    tags: NotRequired[list[str]]
    capabilities: list[ModelCapability]
    parameters: NotRequired[str]
    details: ModelDetails

ModelWaiting: TypeAlias = Literal[True]

class NamedJsonSchema(TypedDict):
    name: NotRequired[str | None]
    description: NotRequired[str | None]
    schema: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]

class NamedModel(TypedDict):
    id: str
    aliases: list[str]
    object: Literal["model"]
    created: int
    owned_by: Literal["llamacpp"]

class NextToken(TypedDict):
    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int
    stopping_word: str

NoArguments: TypeAlias = dict[str, Any]

NoBias: TypeAlias = Any

class NoImageOptions(TypedDict):
    image_data: NotRequired[list[ImageData] | None]

class NotFoundDetails(TypedDict):
    code: Literal[404]
    message: str
    type: Literal["not_found_error"]

class NotFoundError(TypedDict):
    error: NotFoundDetails

class NotSupportedDetails(TypedDict):
    code: Literal[501]
    message: str
    type: Literal["not_supported_error"]

class NotSupportedError(TypedDict):
    error: NotSupportedDetails

OllamaCallArguments: TypeAlias = dict[str, Any]

OllamaCallId: TypeAlias = str | int | None

OllamaCapability: TypeAlias = Literal[
    "completion", "insert", "tools", "thinking", "vision", "audio", "embedding"
]

OllamaDoneReason: TypeAlias = Literal["stop", "length"]

class OllamaEmbedAnswer(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int

OllamaEmbedInput: TypeAlias = str | list[str] | None

class OllamaEmbeddingsAnswer(TypedDict):
    embedding: list[float]

class OllamaError(TypedDict):
    error: str

OllamaFormatName: TypeAlias = Literal["", "json"] | None

OllamaFormatSchema: TypeAlias = dict[str, Any]

class OllamaFunctionCall(TypedDict):
    name: str
    arguments: OllamaCallArguments

OllamaGenerationRequestError: TypeAlias = InvalidRequestError | ContextSizeError | OllamaError

OllamaKeepAlive: TypeAlias = float | str | None

OllamaLines: TypeAlias = str

OllamaLoadReason: TypeAlias = Literal["load", "unload"]

OllamaMediaTypeError: TypeAlias = MediaTypeError | OllamaError

OllamaModelInfo = TypedDict(
    "OllamaModelInfo",
    {
        "general.parameter_count": int,
        "llama.context_length": int,
    },
)

OllamaModelInfoValue: TypeAlias = str | float | bool

OllamaNoOptions: TypeAlias = dict[str, Any]

OllamaNotFoundError: TypeAlias = NotFoundError | OllamaError

OllamaNotSupportedError: TypeAlias = NotSupportedError | OllamaError

class OllamaProcess(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int
    memory: NotRequired[ModelMemory]

class OllamaProcesses(TypedDict):
    models: list[OllamaProcess]

class OllamaPullProgress(TypedDict):
    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]

class OllamaPullRequest(TypedDict):
    model: NotRequired[str | None]
    name: NotRequired[str | None]
    insecure: NotRequired[bool | None]
    stream: NotRequired[bool | None]

class OllamaShowRequest(TypedDict):
    model: NotRequired[str | None]
    name: NotRequired[str | None]

class OllamaShowResponse(TypedDict):
    license: NotRequired[str]
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: OllamaModelInfo
    capabilities: list[OllamaCapability]
    modified_at: str

class OllamaStatus(TypedDict):
    status: Literal["success"]

OllamaThink: TypeAlias = bool | str | None

class OllamaToolCall(TypedDict):
    id: str
    function: OllamaFunctionCall

class OllamaToolCallInput(TypedDict):
    id: NotRequired[OllamaCallId]
    type: NotRequired[str | None]
    function: FunctionCallInput | None

class OllamaVersion(TypedDict):
    version: str

class OpenAIEmbedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: EmbeddingVector
    encoding_format: NotRequired[Literal["base64"]]

class OpenAIEmbeddingResponse(TypedDict):
    object: Literal["list"]
    model: str
    data: list[OpenAIEmbedding]
    usage: InputUsage

class OpenApiInfo(TypedDict):
    title: str
    version: str

OpenApiPaths: TypeAlias = dict[str, Any]

OtherDocumentSourceType: TypeAlias = Literal["base64", "url", "file"]

class OtherPart(TypedDict):
    type: NotRequired[str | None]
    text: NotRequired[str | None]
    refusal: NotRequired[str | None]
    thinking: NotRequired[Any]

class PermissionDetails(TypedDict):
    code: Literal[403]
    message: str
    type: Literal["permission_error"]

class PermissionError(TypedDict):
    error: PermissionDetails

class PingEvent(TypedDict):
    type: Literal["ping"]

PredictInstance = TypedDict(
    "PredictInstance",
    {"@requestFormat": NotRequired[str]},
)

class PredictRequest(TypedDict):
    instances: list[PredictInstance]

PredictedObject: TypeAlias = dict[str, Any]

class PromptProgress(TypedDict):
    total: int
    cache: int
    processed: int
    time_ms: float

PromptTimeout: TypeAlias = float | None

class PromptTokensDetails(TypedDict):
    cached_tokens: int
    cached_ram_tokens: NotRequired[int]
    cached_disk_tokens: NotRequired[int]

PropsChange: TypeAlias = dict[str, Any]

class RankLoad(TypedDict):
    dp_rank: int
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int

RankLoads: TypeAlias = list[RankLoad]

class RankedText(TypedDict):
    index: int
    score: float
    text: NotRequired[str]

RankedTexts: TypeAlias = list[RankedText]

class RateLimitDetails(TypedDict):
    code: Literal[429]
    message: str
    type: Literal["rate_limit_error"]

class RateLimitError(TypedDict):
    error: RateLimitDetails

ReasoningFormat: TypeAlias = Literal["none", "auto", "deepseek", "deepseek-legacy"] | None

class RedactedThinkingBlock(TypedDict):
    type: Literal["redacted_thinking"]
    data: NotRequired[str | None]

RequestPriority: TypeAlias = float | None

RequestTimeout: TypeAlias = float | None

class RequestTimeoutDetails(TypedDict):
    code: Literal[408]
    message: str
    type: Literal["invalid_request_error"]

class RequestTimeoutError(TypedDict):
    error: RequestTimeoutDetails

class RerankRequest(TypedDict):
    query: str
    documents: NotRequired[list[str] | None]
    texts: NotRequired[list[str] | None]
    top_n: NotRequired[int | None]
    return_documents: NotRequired[bool | None]
    return_text: NotRequired[bool | None]
    raw_scores: NotRequired[bool | None]
    priority: NotRequired[RequestPriority | None]
    timeout_ms: NotRequired[InputTimeout | None]
    model: NotRequired[str | None]

ResponseAllowedToolsMode: TypeAlias = Literal["auto", "required"]

class ResponseContextRule(TypedDict):
    type: str
    compact_threshold: NotRequired[int | None]

class ResponseConversationObject(TypedDict):
    id: str

class ResponseCreateEventFields(TypedDict):
    type: Literal["response.create"]
    stream_id: NotRequired[str | None]

class ResponseCustomTool(TypedDict):
    type: Literal["custom"]
    name: str
    description: NotRequired[str | None]
    format: JsonObject | None

ResponseEventName: TypeAlias = Literal[
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "error",
]

class ResponseFailedSteer(TypedDict):
    id: NotRequired[str]
    previous_response_id: str
    input: Any

ResponseFailureCode: TypeAlias = Literal["server_error", "invalid_prompt"]

ResponseFormatType: TypeAlias = Literal["text", "json_object", "json_schema"]

class ResponseFunctionTool(TypedDict):
    type: Literal["function"]
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]

class ResponseIncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]
    deadline: NotRequired[Deadline]

class ResponseInputAudio(TypedDict):
    data: str
    format: NotRequired[str | None]

class ResponseInputCompaction(TypedDict):
    type: Literal["compaction"]
    id: NotRequired[str | None]
    encrypted_content: str
    left_out: NotRequired[int | None]

class ResponseInputCustomCall(TypedDict):
    type: Literal["custom_tool_call"]
    id: NotRequired[str | None]
    call_id: str
    name: str
    namespace: NotRequired[str | None]
    input: str
    status: NotRequired[str | None]

class ResponseInputFunctionCall(TypedDict):
    type: Literal["function_call"]
    id: NotRequired[str | None]
    call_id: str
    name: str
    namespace: NotRequired[str | None]
    arguments: str
    status: NotRequired[str | None]

ResponseInputMediaType: TypeAlias = Literal["input_image", "input_file", "input_audio"]

class ResponseInputRefusal(TypedDict):
    type: Literal["refusal"]
    refusal: str

class ResponseInputSearchCall(TypedDict):
    type: Literal["tool_search_call"]
    id: NotRequired[str | None]
    call_id: NotRequired[str | None]
    execution: NotRequired[str | None]
    arguments: NotRequired[Any]
    status: NotRequired[str | None]

ResponseInputTextType: TypeAlias = Literal["input_text", "output_text", "text"]

class ResponseInputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int

class ResponseInputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int

ResponseItemOrder: TypeAlias = Literal["asc", "desc"]

class ResponseItemReference(TypedDict):
    type: Literal["item_reference"]
    id: str

ResponseItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]

ResponseMetadata: TypeAlias = dict[str, Any]

class ResponseNamedTool(TypedDict):
    name: str
    namespace: NotRequired[str | None]

class ResponseOfConversation(TypedDict):
    id: str

class ResponseOtherItem(TypedDict):
    type: str

class ResponseOtherPart(TypedDict):
    type: NotRequired[str | None]
    text: NotRequired[str | None]
    refusal: NotRequired[str | None]

class ResponseOutputTokensDetails(TypedDict):
    reasoning_tokens: int

ResponsePlainFormatType: TypeAlias = Literal["text", "json_object"]

class ResponseReasoningOptions(TypedDict):
    effort: NotRequired[str | None]
    summary: NotRequired[str | None]

class ResponseReasoningSettings(TypedDict):
    effort: str | None
    summary: None

class ResponseReasoningSummary(TypedDict):
    type: Literal["summary_text"]
    text: str

class ResponseReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str

ResponseRequestMetadata: TypeAlias = dict[str, Any]

class ResponseSearchCall(TypedDict):
    id: str
    type: Literal["tool_search_call"]
    status: ResponseItemStatus
    call_id: str
    execution: Literal["client"]
    arguments: Any

class ResponseSearchTool(TypedDict):
    type: Literal["tool_search"]
    execution: Literal["client"]
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]

class ResponseServerSentEvent(TypedDict):
    event: ResponseEventName
    data: str

class ResponseSocketErrorDetails(TypedDict):
    type: str
    code: str
    message: str
    param: str | None

ResponseSocketErrorHeaders: TypeAlias = dict[str, str]

ResponseStatus: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]

class ResponseSteer(TypedDict):
    id: str
    previous_response_id: str

class ResponseSteerAcceptedEvent(TypedDict):
    type: Literal["response.steer.accepted"]
    steer: ResponseSteer
    sequence_number: int
    stream_id: NotRequired[str]

ResponseSteerErrorCode: TypeAlias = Literal[
    "response_not_found",
    "invalid_input",
    "steering_not_supported",
    "too_many_pending_steers",
    "response_already_completed",
    "response_not_active",
    "successor_creation_failed",
]

ResponseSteerRequiredType: TypeAlias = Literal["function_call_output", "custom_tool_call_output"]

class ResponseStoredText(TypedDict):
    type: Literal["input_text"]
    text: str

ResponseTextSchema: TypeAlias = dict[str, Any]

ResponseToolChoiceMode: TypeAlias = Literal["none", "auto", "required", "any"] | None

ResponseToolOfNamespace: TypeAlias = ResponseFunctionTool | ResponseCustomTool

ResponseToolOutputType: TypeAlias = Literal["function_call_output", "custom_tool_call_output"]

ResponseTruncation: TypeAlias = Literal["disabled", "auto"]

class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: ResponseInputTokensDetails
    output_tokens: int
    output_tokens_details: ResponseOutputTokensDetails
    total_tokens: int

class ReturnedDocument(TypedDict):
    text: str

SamplerName: TypeAlias = Literal[
    "penalties",
    "dry",
    "top_n_sigma",
    "top-n-sigma",
    "topnsigma",
    "top_k",
    "top-k",
    "topk",
    "typ_p",
    "typ-p",
    "typp",
    "typ",
    "typical",
    "typical_p",
    "typical-p",
    "typicalp",
    "top_p",
    "top-p",
    "topp",
    "nucleus",
    "min_p",
    "min-p",
    "minp",
    "xtc",
    "temperature",
    "temp",
    "adaptive_p",
    "adaptive-p",
    "adaptivep",
    "infill",
]

class ServerErrorDetails(TypedDict):
    code: Literal[500]
    message: str
    type: Literal["server_error"]

class ServerInfo(TypedDict):
    served_model_name: str

class ServerLoad(TypedDict):
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    num_waiting_uncached_tokens: int
    num_total_tokens: int
    max_total_num_tokens: int
    token_usage: float
    gen_throughput: float
    cache_hit_rate: float
    utilization: float
    max_running_requests: int

class ServerLoads(TypedDict):
    timestamp: str
    dp_rank_count: int
    loads: list[ServerLoad]

class ServerModalities(TypedDict):
    vision: bool
    audio: bool
    video: NotRequired[bool]

ServerRole: TypeAlias = Literal["model", "router"]

class ServerSentEvent(TypedDict):
    event: NotRequired[str]
    data: str

ServerToolSchema: TypeAlias = dict[str, Any]

ServerToolType: TypeAlias = Literal["server", "mcp"]

class SignatureDelta(TypedDict):
    type: Literal["signature_delta"]
    signature: Literal[""]

SlotAction: TypeAlias = Literal["save", "restore", "erase"]

class SlotActionRequest(TypedDict):
    model: NotRequired[ModelChoice | None]
    filename: NotRequired[str | None]

class SlotErased(TypedDict):
    id_slot: int
    n_erased: int

class SlotRestoreTimings(TypedDict):
    restore_ms: float

class SlotRestored(TypedDict):
    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: SlotRestoreTimings

class SlotSaveTimings(TypedDict):
    save_ms: float

class SlotSaved(TypedDict):
    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SlotSaveTimings

class StartedMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[JsonObject | None]
    stop_reason: None
    stop_sequence: None
    stop_details: dict[str, Any] | None
    container: dict[str, Any] | None
    usage: MessagesUsage

Stop: TypeAlias = str | list[str] | None

StopType: TypeAlias = Literal["none", "eos", "limit", "word"]

StreamList: TypeAlias = list[KeptStream]

class StreamOptions(TypedDict):
    include_usage: NotRequired[bool | None]
    include_obfuscation: NotRequired[bool | None]

class StreamsLookup(TypedDict):
    conversation_ids: NotRequired[list[str] | None]

class Success(TypedDict):
    success: Literal[True]

class TextBlock(TypedDict):
    type: Literal["text"]
    text: str
    citations: list[JsonObject | None]

class TextBlockInput(TypedDict):
    type: Literal["text"]
    text: str
    citations: NotRequired[Any]
    cache_control: NotRequired[CacheControl | None]

class TextBlockStart(TypedDict):
    type: Literal["text"]
    text: Literal[""]
    citations: list[JsonObject | None]

TextBlocks: TypeAlias = list[TextBlockInput]

class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str

class TextDocumentSource(TypedDict):
    type: Literal["text"]
    data: str
    media_type: NotRequired[Literal["text/plain"] | None]

TextFinishReason: TypeAlias = Literal["stop", "length"]

class TextPart(TypedDict):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: NotRequired[Any]

TextRivals: TypeAlias = dict[str, float]

class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]

class ThinkingBlockInput(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: NotRequired[str | None]

class ThinkingBlockStart(TypedDict):
    type: Literal["thinking"]
    thinking: Literal[""]
    signature: Literal[""]

class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str

class Timings(TypedDict):
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]
    cache_kv_n: NotRequired[int]
    cache_ram_n: NotRequired[int]
    cache_disk_n: NotRequired[int]
    cache_miss_reason: NotRequired[CacheMissReason | None]
    cache_miss_at: NotRequired[int | None]

class TokenAlternative(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: NotRequired[float]
    prob: NotRequired[float]

TokenId: TypeAlias = int

TokenIdOrText: TypeAlias = TokenId | str

TokenOrBias: TypeAlias = float | str | Literal[False]

TokenOrText: TypeAlias = int | str

class TokenProbability(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: NotRequired[float]
    prob: NotRequired[float]
    top_logprobs: NotRequired[list[TokenAlternative]]
    top_probs: NotRequired[list[TokenAlternative]]

TokenText: TypeAlias = str | list[int]

TokenizeContent: TypeAlias = str | list[TokenIdOrText] | None

class TokenizeRequest(TypedDict):
    model: NotRequired[ModelChoice | None]
    content: NotRequired[TokenizeContent]
    add_special: NotRequired[bool | None]
    parse_special: NotRequired[bool | None]
    with_pieces: NotRequired[bool | None]

TokensAndTexts: TypeAlias = list[TokenOrText]

ToolArguments: TypeAlias = dict[str, Any]

ToolCall: TypeAlias = FunctionToolCall | CustomToolCall

class ToolCallInput(TypedDict):
    id: NotRequired[CallId]
    type: NotRequired[str | None]
    function: NotRequired[FunctionCallInput | None]
    custom: NotRequired[CustomCallInput | None]

ToolCallType: TypeAlias = Literal["function", "custom"]

class ToolCaller(TypedDict):
    type: Literal["direct"]

ToolChoiceMode: TypeAlias = Literal["none", "auto", "required", "any"] | None

class ToolChunk(TypedDict):
    chunk: str

class ToolDone(TypedDict):
    done: Literal[True]
    error: NotRequired[str]

ToolEvent: TypeAlias = ToolChunk | ToolDone

class ToolEventFrame(TypedDict):
    data: str

class ToolFailure(TypedDict):
    error: str

class ToolFields(TypedDict):
    name: NotRequired[str]
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]

class ToolFile(TypedDict):
    base64: str
    size_bytes: int

class ToolFileChange(TypedDict):
    result: str
    path: str
    bytes: NotRequired[int]
    edits_applied: NotRequired[int]

ToolInputSchema: TypeAlias = dict[str, Any]

class ToolPermissions(TypedDict):
    write: bool

class ToolPlace(TypedDict):
    os: str
    cwd: str

class ToolReference(TypedDict):
    name: str
    namespace: NotRequired[str | None]

ToolRunArguments: TypeAlias = dict[str, Any]

ToolUseArguments: TypeAlias = dict[str, Any]

class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: ToolArguments
    caller: ToolCaller

class ToolUseBlockStart(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: NoArguments
    caller: ToolCaller

ToolUseInput: TypeAlias = ToolUseArguments | str

class TranscriptionDelta(TypedDict):
    type: Literal["transcript.text.delta"]
    delta: str

TranscriptionFormat: TypeAlias = Literal["json", "text"] | None

class TranscriptionInputDetails(TypedDict):
    cached_tokens: int

class TranscriptionRequest(TypedDict):
    file: bytes
    model: NotRequired[ModelChoice | None]
    prompt: NotRequired[str | None]
    language: NotRequired[str | None]
    response_format: NotRequired[TranscriptionFormat | None]
    temperature: NotRequired[float | None]
    max_tokens: NotRequired[int | None]
    stream: NotRequired[bool | None]

class TranscriptionUsage(TypedDict):
    type: Literal["tokens"]
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TranscriptionInputDetails

UiSettings: TypeAlias = dict[str, Any]

class UnavailableDetails(TypedDict):
    code: Literal[503]
    message: str
    type: Literal["unavailable_error"]
    estimated_wait_ms: NotRequired[int]

class UnavailableError(TypedDict):
    error: UnavailableDetails

class UnusedSlot(TypedDict):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool

class UpgradeRequiredDetails(TypedDict):
    code: Literal[426]
    message: str
    type: Literal["invalid_request_error"]

class UpgradeRequiredError(TypedDict):
    error: UpgradeRequiredDetails

class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

UsageGroup: TypeAlias = Literal["key", "model", "hour"]

class UsageRow(TypedDict):
    key: NotRequired[str]
    model: NotRequired[str]
    hour: NotRequired[int]
    requests: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    media: int
    seconds: float

class Version(TypedDict):
    version: str
    build_info: str

class VideoPart(TypedDict):
    type: Literal["input_video"]
    input_video: InputVideo

class VideoUrlPart(TypedDict):
    type: Literal["video_url"]
    video_url: InputVideo

class WaitingRequest(TypedDict):
    id_task: int
    place: int
    key_name: str
    priority: int
    n_tokens: int
    n_uncached_tokens: int
    age_ms: float
    wait_ms: float

class AllowedTool(TypedDict):
    type: str
    name: NotRequired[str]
    function: NotRequired[ToolReference]
    custom: NotRequired[ToolReference]

class AllowedTools(TypedDict):
    mode: AllowedToolsMode
    tools: list[AllowedTool]

class AnthropicAuthentication(TypedDict):
    type: Literal["error"]
    error: AnthropicAuthenticationError
    request_id: str

class AnthropicInvalidRequest(TypedDict):
    type: Literal["error"]
    error: AnthropicInvalidRequestError
    request_id: str

class AnthropicOverloaded(TypedDict):
    type: Literal["error"]
    error: AnthropicOverloadedError
    request_id: str

class AnthropicPermission(TypedDict):
    type: Literal["error"]
    error: AnthropicPermissionError
    request_id: str

class AnthropicRateLimit(TypedDict):
    type: Literal["error"]
    error: AnthropicRateLimitError
    request_id: str

class AnthropicTimeout(TypedDict):
    type: Literal["error"]
    error: AnthropicTimeoutError
    request_id: str

class AnthropicTooLarge(TypedDict):
    type: Literal["error"]
    error: AnthropicTooLargeError
    request_id: str

class AudioPart(TypedDict):
    type: Literal["input_audio"]
    input_audio: InputAudio
    prompt_cache_breakpoint: NotRequired[Any]

BiasOrNone: TypeAlias = Bias | NoBias

class ChatCompletionMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    function_call: NotRequired[FunctionCall]

class ChatLogprobs(TypedDict):
    content: list[TokenProbability]

class CompletionDelta(TypedDict):
    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
    completion_probabilities: NotRequired[list[TokenProbability]]

ContentBlock: TypeAlias = ThinkingBlock | TextBlock | ToolUseBlock

ContentBlockDelta: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta

class ContentBlockDeltaEvent(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: ContentBlockDelta

ContentBlockStart: TypeAlias = ThinkingBlockStart | TextBlockStart | ToolUseBlockStart

class ContentBlockStartEvent(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlockStart

Continuation: TypeAlias = bool | ContinuedPart | None

class ConversationUpdate(TypedDict):
    metadata: ResponseRequestMetadata | None

class CustomTool(TypedDict):
    name: str
    description: NotRequired[str | None]
    format: NotRequired[JsonObject | None]

class DetokenizeRequest(TypedDict):
    model: NotRequired[ModelChoice | None]
    tokens: NotRequired[list[TokenId] | None]

DisabledOrNotAllowedError: TypeAlias = DisabledError | PermissionError

DocumentContent: TypeAlias = str | TextBlocks

DownloadProgress: TypeAlias = dict[str, FileProgress]

class EmbeddingMediaPart(TypedDict):
    type: EmbeddingMediaType
    image_url: NotRequired[ImageUrl]
    input_audio: NotRequired[InputAudio]
    input_video: NotRequired[InputVideo]
    video_url: NotRequired[InputVideo]

EmbeddingPart: TypeAlias = EmbeddingTextPart | EmbeddingMediaPart

EmbeddingParts: TypeAlias = str | list[EmbeddingPart]

EmbeddingResponse: TypeAlias = list[InputEmbedding]

EmbeddingTokens: TypeAlias = list[TokenOrText]

class FoundEntry(TypedDict):
    path: str
    type: FoundEntryType

FunctionChoice: TypeAlias = FunctionChoiceMode | FunctionReference

class FunctionTool(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]

GeminiAnswerPart: TypeAlias = GeminiThoughtPart | GeminiTextPart | GeminiCallPart

class GeminiDeadlineExceeded(TypedDict):
    error: GeminiDeadlineExceededStatus

class GeminiFunctionCall(TypedDict):
    id: NotRequired[str | None]
    name: str
    args: NotRequired[JsonObject | None]

class GeminiFunctionDeclaration(TypedDict):
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[JsonObject | None]
    parametersJsonSchema: NotRequired[JsonObject | None]
    response: NotRequired[JsonObject | None]
    responseJsonSchema: NotRequired[JsonObject | None]

class GeminiFunctionResponse(TypedDict):
    id: NotRequired[str | None]
    name: str
    response: NotRequired[JsonObject | None]
    parts: NotRequired[list[GeminiResponsePart] | None]

class GeminiGenerationConfig(TypedDict):
    temperature: NotRequired[float | None]
    topP: NotRequired[float | None]
    topK: NotRequired[float | None]
    maxOutputTokens: NotRequired[float | None]
    stopSequences: NotRequired[list[str] | None]
    candidateCount: NotRequired[float | None]
    seed: NotRequired[float | None]
    presencePenalty: NotRequired[float | None]
    frequencyPenalty: NotRequired[float | None]
    responseMimeType: NotRequired[str | None]
    responseSchema: NotRequired[JsonObject | None]
    responseJsonSchema: NotRequired[JsonSchema | None]
    responseLogprobs: NotRequired[bool | None]
    logprobs: NotRequired[float | None]
    responseModalities: NotRequired[list[str] | None]
    thinkingConfig: NotRequired[GeminiThinkingConfig | None]
    priority: NotRequired[RequestPriority | None]
    timeoutMs: NotRequired[RequestTimeout | None]
    tMaxPromptMs: NotRequired[PromptTimeout | None]
    mediaResolution: NotRequired[str | None]

class GeminiInternal(TypedDict):
    error: GeminiInternalStatus

class GeminiInvalidArgument(TypedDict):
    error: GeminiInvalidArgumentStatus

class GeminiLogprobs(TypedDict):
    chosenCandidates: list[GeminiToken]
    topCandidates: list[GeminiTopTokens]

class GeminiNotFound(TypedDict):
    error: GeminiNotFoundStatus

class GeminiOptions(TypedDict):
    generationConfig: NotRequired[GeminiGenerationConfig | None]
    cachedContent: NotRequired[str | None]
    safetySettings: NotRequired[list[JsonObject | None] | None]

class GeminiOtherMedia(TypedDict):
    error: GeminiOtherMediaStatus

class GeminiPart(TypedDict):
    text: NotRequired[str | None]
    thought: NotRequired[bool | None]
    thoughtSignature: NotRequired[str | None]
    inlineData: NotRequired[GeminiBlob | None]
    fileData: NotRequired[GeminiFile | None]
    functionCall: NotRequired[GeminiFunctionCall | None]
    functionResponse: NotRequired[GeminiFunctionResponse | None]
    executableCode: NotRequired[GeminiCode | None]
    codeExecutionResult: NotRequired[GeminiCodeResult | None]

class GeminiPermissionDenied(TypedDict):
    error: GeminiPermissionDeniedStatus

class GeminiResourceExhausted(TypedDict):
    error: GeminiResourceExhaustedStatus

class GeminiTooLarge(TypedDict):
    error: GeminiTooLargeStatus

class GeminiTool(TypedDict):
    functionDeclarations: NotRequired[list[GeminiFunctionDeclaration] | None]
    googleSearch: NotRequired[JsonObject | None]
    codeExecution: NotRequired[JsonObject | None]
    urlContext: NotRequired[JsonObject | None]

class GeminiUnauthenticated(TypedDict):
    error: GeminiUnauthenticatedStatus

class GeminiUnavailable(TypedDict):
    error: GeminiUnavailableStatus

class GeminiUnimplemented(TypedDict):
    error: GeminiUnimplementedStatus

GenerationRequestError: TypeAlias = InvalidRequestError | ContextSizeError

class GrammarTrigger(TypedDict):
    type: GrammarTriggerType
    value: NotRequired[str | None]
    token: NotRequired[int | None]

class ImagePart(TypedDict):
    type: Literal["image_url"]
    image_url: ImageUrl
    prompt_cache_breakpoint: NotRequired[Any]

class ImageSource(TypedDict):
    type: ImageSourceType
    media_type: NotRequired[str | None]
    data: NotRequired[str | None]
    url: NotRequired[str | None]
    file_id: NotRequired[str | None]

InfillText: TypeAlias = str | list[TokenOrText]

class LmStudioModel(TypedDict):
    id: str
    object: Literal["model"]
    type: LmStudioModelType
    publisher: str
    arch: str
    compatibility_type: Literal["gguf"]
    quantization: str
    state: LmStudioModelState
    max_context_length: NotRequired[int]
    loaded_context_length: NotRequired[int]
    capabilities: list[Literal["tool_use"]]

class LmStudioModelList(TypedDict):
    object: Literal["list"]
    data: list[LmStudioModel]

LogitBiasMap: TypeAlias = dict[str, BiasOrNone]

LogitBiasPair: TypeAlias = list[TokenOrBias]

class MessageDelta(TypedDict):
    stop_reason: MessagesStopReason
    stop_sequence: str | None
    stop_details: dict[str, Any] | None
    container: dict[str, Any] | None
    deadline: NotRequired[Deadline]

class MessageDeltaEvent(TypedDict):
    type: Literal["message_delta"]
    delta: MessageDelta
    usage: MessagesUsage

MessagePart: TypeAlias = (
    TextPart | ImagePart | AudioPart | VideoPart | VideoUrlPart | FilePart | OtherPart | str
)

class MessageStartEvent(TypedDict):
    type: Literal["message_start"]
    message: StartedMessage

MessagesEvent: TypeAlias = (
    MessageStartEvent
    | PingEvent
    | ContentBlockStartEvent
    | ContentBlockDeltaEvent
    | ContentBlockStopEvent
    | MessageDeltaEvent
    | MessageStopEvent
    | AnthropicApiFailure
    | AnthropicOverloaded
    | AnthropicInvalidRequest
)

class MessagesOutputFormat(TypedDict):
    type: Literal["json_schema"]
    schema: MessagesOutputSchema

class MessagesResponse(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: MessagesStopReason
    stop_sequence: str | None
    stop_details: dict[str, Any] | None
    container: dict[str, Any] | None
    deadline: NotRequired[Deadline]
    usage: MessagesUsage

class MessagesTool(TypedDict):
    type: NotRequired[str | None]
    name: NotRequired[str | None]
    description: NotRequired[str | None]
    input_schema: NotRequired[ToolInputSchema]
    strict: NotRequired[bool | None]
    allowed_callers: NotRequired[Any]
    defer_loading: NotRequired[Any]
    eager_input_streaming: NotRequired[Any]
    input_examples: NotRequired[Any]
    cache_control: NotRequired[CacheControl | None]

class MessagesToolChoice(TypedDict):
    type: MessagesToolChoiceType
    name: NotRequired[str | None]
    disable_parallel_tool_use: NotRequired[bool | None]

class ModelArchitecture(TypedDict):
    input_modalities: list[ModelModality]
    output_modalities: list[ModelModality]

ModelProgress: TypeAlias = LoadProgress | DownloadProgress

class ModelStatus(TypedDict):
    value: ModelState
    args: list[str]
    preset: str
    progress: float
    waiting: NotRequired[ModelWaiting]
    failed: bool
    exit_code: NotRequired[int]
    error: NotRequired[str]
    download: NotRequired[ModelDownloadState]

class OllamaAnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaToolCall]]

OllamaAuthenticationError: TypeAlias = AuthenticationError | OllamaError

OllamaBodyTooLargeError: TypeAlias = BodyTooLargeError | OllamaError

class OllamaChatAnswer(TypedDict):
    model: str
    created_at: str
    message: OllamaAnswerMessage
    done: Literal[True]
    logprobs: NotRequired[list[TokenProbability]]
    done_reason: OllamaDoneReason
    deadline: NotRequired[Deadline]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int

class OllamaChatLoaded(TypedDict):
    model: str
    created_at: str
    message: OllamaAnswerMessage
    done: Literal[True]
    done_reason: OllamaLoadReason

class OllamaChatPiece(TypedDict):
    model: str
    created_at: str
    message: OllamaAnswerMessage
    done: Literal[False]
    logprobs: NotRequired[list[TokenProbability]]

OllamaFormat: TypeAlias = OllamaFormatName | OllamaFormatSchema

class OllamaGenerateAnswer(TypedDict):
    model: str
    created_at: str
    response: str
    thinking: NotRequired[str]
    done: Literal[True]
    logprobs: NotRequired[list[TokenProbability]]
    context: NotRequired[list[int]]
    done_reason: OllamaDoneReason
    deadline: NotRequired[Deadline]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int

class OllamaGenerateLoaded(TypedDict):
    model: str
    created_at: str
    response: Literal[""]
    done: Literal[True]
    done_reason: OllamaLoadReason

class OllamaGeneratePiece(TypedDict):
    model: str
    created_at: str
    response: str
    thinking: NotRequired[str]
    done: Literal[False]
    logprobs: NotRequired[list[TokenProbability]]

OllamaGenerateResponse: TypeAlias = OllamaGenerateAnswer | OllamaGenerateLoaded

OllamaPermissionError: TypeAlias = PermissionError | OllamaError

OllamaPullLine: TypeAlias = OllamaPullProgress | OllamaError

OllamaRateLimitError: TypeAlias = RateLimitError | OllamaError

OllamaRequestTimeoutError: TypeAlias = RequestTimeoutError | OllamaError

OllamaUnavailableError: TypeAlias = UnavailableError | OllamaError

class OpenApiDocument(TypedDict):
    openapi: str
    info: OpenApiInfo
    paths: OpenApiPaths

class OtherDocumentSource(TypedDict):
    type: OtherDocumentSourceType
    media_type: NotRequired[str | None]
    data: NotRequired[str | None]
    url: NotRequired[str | None]
    file_id: NotRequired[str | None]

PredictedList: TypeAlias = list[PredictedObject]

Prediction: TypeAlias = PredictedObject | PredictedList

PromptString: TypeAlias = str | TokensAndTexts

class Queue(TypedDict):
    model: str
    n_waiting: int
    waiting: list[WaitingRequest]

class RankedDocument(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[ReturnedDocument]

class RerankResponse(TypedDict):
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: InputUsage

class ResponseAllowedTool(TypedDict):
    type: str
    name: NotRequired[str]
    namespace: NotRequired[str | None]
    function: NotRequired[ResponseNamedTool]
    custom: NotRequired[ResponseNamedTool]

class ResponseAllowedTools(TypedDict):
    mode: NotRequired[ResponseAllowedToolsMode]
    tools: NotRequired[list[ResponseAllowedTool]]

class ResponseArgumentsDeltaEvent(TypedDict):
    type: Literal["response.function_call_arguments.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    timings: NotRequired[Timings]

class ResponseArgumentsDoneEvent(TypedDict):
    type: Literal["response.function_call_arguments.done"]
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str
    timings: NotRequired[Timings]

class ResponseCompaction(TypedDict):
    id: str
    type: Literal["compaction"]
    status: ResponseItemStatus
    encrypted_content: str
    left_out: int

ResponseConversation: TypeAlias = str | ResponseConversationObject | None

class ResponseCustomCall(TypedDict):
    id: str
    type: Literal["custom_tool_call"]
    status: ResponseItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]
    input: str

class ResponseCustomInputDeltaEvent(TypedDict):
    type: Literal["response.custom_tool_call_input.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    timings: NotRequired[Timings]

class ResponseCustomInputDoneEvent(TypedDict):
    type: Literal["response.custom_tool_call_input.done"]
    sequence_number: int
    item_id: str
    output_index: int
    input: str
    timings: NotRequired[Timings]

ResponseErrorDetails: TypeAlias = (
    ServerErrorDetails
    | UnavailableDetails
    | InvalidRequestDetails
    | ContextSizeDetails
    | NotSupportedDetails
)

class ResponseErrorEvent(TypedDict):
    type: Literal["error"]
    sequence_number: int
    code: str
    message: str
    param: None
    error: ResponseErrorDetails

class ResponseFailure(TypedDict):
    code: ResponseFailureCode
    message: str

class ResponseFormat(TypedDict):
    type: ResponseFormatType
    schema: NotRequired[JsonSchema | None]
    json_schema: NotRequired[NamedJsonSchema | None]

class ResponseFunctionCall(TypedDict):
    id: str
    type: Literal["function_call"]
    status: ResponseItemStatus
    call_id: str
    name: str
    namespace: NotRequired[str]
    arguments: str

class ResponseInputMedia(TypedDict):
    type: ResponseInputMediaType
    image_url: NotRequired[str | None]
    detail: NotRequired[str | None]
    input_audio: NotRequired[ResponseInputAudio | None]
    file_data: NotRequired[str | None]
    filename: NotRequired[str | None]
    file_url: NotRequired[str | None]
    file_id: NotRequired[str | None]

class ResponseInputReasoning(TypedDict):
    type: Literal["reasoning"]
    id: NotRequired[str | None]
    content: NotRequired[list[ResponseReasoningText] | None]
    summary: NotRequired[list[ResponseReasoningSummary] | None]
    encrypted_content: NotRequired[str | None]
    status: NotRequired[str | None]

class ResponseInputText(TypedDict):
    type: ResponseInputTextType
    text: str

class ResponseNamespaceTool(TypedDict):
    type: Literal["namespace"]
    name: str
    description: str
    tools: list[ResponseToolOfNamespace]

ResponseOfferedTool: TypeAlias = (
    ResponseFunctionTool | ResponseCustomTool | ResponseNamespaceTool | ResponseSearchTool
)

class ResponseOutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[JsonObject | None]
    logprobs: NotRequired[list[TokenProbability]]

class ResponsePlainFormat(TypedDict):
    type: ResponsePlainFormatType
    schema: NotRequired[JsonSchema | None]

class ResponseReasoning(TypedDict):
    id: str
    type: Literal["reasoning"]
    status: ResponseItemStatus
    summary: list[ResponseReasoningSummary]
    content: list[ResponseReasoningText]
    encrypted_content: NotRequired[str]

class ResponseReasoningTextDeltaEvent(TypedDict):
    type: Literal["response.reasoning_text.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Literal[0]
    delta: str
    timings: NotRequired[Timings]

class ResponseReasoningTextDoneEvent(TypedDict):
    type: Literal["response.reasoning_text.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Literal[0]
    text: str
    timings: NotRequired[Timings]

class ResponseSchemaFormat(TypedDict):
    type: Literal["json_schema"]
    name: NotRequired[str | None]
    description: NotRequired[str | None]
    schema: ResponseTextSchema
    strict: NotRequired[bool | None]

class ResponseSocketError(TypedDict):
    type: Literal["error"]
    status: int
    error: ResponseSocketErrorDetails
    headers: ResponseSocketErrorHeaders
    stream_id: NotRequired[str]

class ResponseSteerError(TypedDict):
    type: Literal["invalid_request_error"]
    code: ResponseSteerErrorCode
    message: str

class ResponseSteerFailedEvent(TypedDict):
    type: Literal["response.steer.failed"]
    steer: ResponseFailedSteer
    error: ResponseSteerError
    sequence_number: int
    stream_id: NotRequired[str]

class ResponseSteerRequiredInput(TypedDict):
    type: ResponseSteerRequiredType
    call_id: str
    name: NotRequired[str]

ResponseStoredPart: TypeAlias = (
    ResponseStoredText | ResponseOutputText | ResponseInputRefusal | ResponseInputMedia
)

class ResponseTextDeltaEvent(TypedDict):
    type: Literal["response.output_text.delta"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Literal[0]
    delta: str
    logprobs: list[TokenProbability]
    timings: NotRequired[Timings]

class ResponseTextDoneEvent(TypedDict):
    type: Literal["response.output_text.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Literal[0]
    text: str
    logprobs: list[TokenProbability]
    timings: NotRequired[Timings]

ResponseTextFormat: TypeAlias = ResponsePlainFormat | ResponseSchemaFormat | None

class ResponseTextOptions(TypedDict):
    format: NotRequired[ResponseTextFormat]
    verbosity: NotRequired[str | None]

class ResponseTextSettings(TypedDict):
    format: ResponseTextFormat
    verbosity: str

class ResponseToolChoiceObject(TypedDict):
    type: str
    name: NotRequired[str]
    namespace: NotRequired[str | None]
    function: NotRequired[ResponseNamedTool]
    custom: NotRequired[ResponseNamedTool]
    mode: NotRequired[ResponseAllowedToolsMode]
    tools: NotRequired[list[ResponseAllowedTool]]
    allowed_tools: NotRequired[ResponseAllowedTools | None]

class ResponseToolInNamespace(TypedDict):
    type: NotRequired[str | None]
    name: NotRequired[str]
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]
    format: NotRequired[JsonObject | None]
    defer_loading: NotRequired[Any]
    function: NotRequired[FunctionTool | None]
    custom: NotRequired[CustomTool | None]

SamplerChoice: TypeAlias = SamplerName | str

Samplers: TypeAlias = list[SamplerChoice] | str

class ServerError(TypedDict):
    error: ServerErrorDetails

class ServerToolFunction(TypedDict):
    name: str
    description: str
    parameters: ServerToolSchema

SlotActionResult: TypeAlias = SlotSaved | SlotRestored | SlotErased

SlotSettings = TypedDict(
    "SlotSettings",
    {
        "seed": int,
        "temperature": float,
        "dynatemp_range": float,
        "dynatemp_exponent": float,
        "top_k": int,
        "top_p": float,
        "min_p": float,
        "top_n_sigma": float,
        "xtc_probability": float,
        "xtc_threshold": float,
        "typical_p": float,
        "repeat_last_n": int,
        "repeat_penalty": float,
        "presence_penalty": float,
        "frequency_penalty": float,
        "dry_multiplier": float,
        "dry_base": float,
        "dry_allowed_length": int,
        "dry_penalty_last_n": int,
        "dry_sequence_breakers": NotRequired[list[str]],
        "mirostat": MirostatVersion,
        "mirostat_tau": float,
        "mirostat_eta": float,
        "adaptive_target": float,
        "adaptive_decay": float,
        "stop": NotRequired[list[str]],
        "max_tokens": int,
        "n_predict": int,
        "n_keep": int,
        "n_discard": int,
        "ignore_eos": bool,
        "stream": bool,
        "cache_prompt": bool,
        "n_cache_reuse": int,
        "id_slot": int,
        "return_tokens": bool,
        "logit_bias": NotRequired[list[AppliedLogitBias]],
        "n_probs": int,
        "min_keep": int,
        "grammar": NotRequired[str],
        "json_schema": NotRequired[JsonSchema | None],
        "grammar_lazy": bool,
        "grammar_triggers": NotRequired[list[GrammarTrigger]],
        "preserved_tokens": NotRequired[list[int]],
        "chat_format": str,
        "reasoning_format": AppliedReasoningFormat,
        "reasoning_in_content": bool,
        "thinking_forced_open": bool,
        "generation_prompt": str,
        "samplers": list[AppliedSampler],
        "speculative.types": str,
        "speculative.n_max": int,
        "speculative.n_min": int,
        "speculative.p_min": float,
        "timings_per_token": bool,
        "return_progress": bool,
        "n_indent": int,
        "t_max_predict_ms": int,
        "post_sampling_probs": bool,
        "backend_sampling": bool,
        "json_whitespace": AppliedJsonWhitespace,
        "jump_forward": bool,
        "lora": list[LoraScale],
        "n_ctx": int,
        "model": str,
    },
)

class TextLogprobs(TypedDict):
    content: list[TokenProbability]
    tokens: NotRequired[list[str]]
    token_logprobs: NotRequired[list[float | None]]
    top_logprobs: NotRequired[list[TextRivals | None]]
    text_offset: NotRequired[list[int]]

class TokenPiece(TypedDict):
    id: TokenId
    piece: TokenText

class Tool(ToolFields):
    type: NotRequired[str | None]
    function: NotRequired[FunctionTool | None]
    custom: NotRequired[CustomTool | None]
    format: NotRequired[JsonObject | None]
    execution: NotRequired[str | None]
    tools: NotRequired[list[ResponseToolInNamespace] | None]

class ToolCallDelta(TypedDict):
    index: int
    id: NotRequired[str]
    type: NotRequired[ToolCallType]
    custom: NotRequired[CustomInputDelta]
    function: NotRequired[FunctionArgumentsDelta]

class ToolChange(TypedDict):
    type: NotRequired[str | None]
    name: NotRequired[str | None]
    definition: NotRequired[MessagesTool]

class ToolRun(TypedDict):
    tool: str
    params: NotRequired[ToolRunArguments | None]
    stream: NotRequired[bool | None]

class ToolText(TypedDict):
    plain_text_response: str
    entries: NotRequired[list[FoundEntry]]
    base: NotRequired[str]

class ToolUseBlockInput(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: NotRequired[ToolUseInput]
    caller: NotRequired[Any]
    cache_control: NotRequired[CacheControl | None]

class Transcription(TypedDict):
    type: Literal["transcript.text.done"]
    text: str
    usage: TranscriptionUsage
    deadline: NotRequired[Deadline]

TranscriptionEvent: TypeAlias = (
    TranscriptionDelta | Transcription | InvalidRequestError | ServerError
)

class UsagePage(TypedDict):
    object: Literal["list"]
    data: list[UsageRow]
    has_more: bool

AnyEmbeddingResponse: TypeAlias = OpenAIEmbeddingResponse | EmbeddingResponse

AnyRerankResponse: TypeAlias = RerankResponse | RankedTexts

class BlocksDocumentSource(TypedDict):
    type: Literal["content"]
    content: DocumentContent

class ChatCompletionChoice(TypedDict):
    index: int
    message: ChatCompletionMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    deadline: NotRequired[Deadline]

class ChatCompletionDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]
    function_call: NotRequired[FunctionCallDelta]

DocumentSource: TypeAlias = TextDocumentSource | BlocksDocumentSource | OtherDocumentSource

class EmbeddingContent(TypedDict):
    content: EmbeddingParts

class GeminiAnswerContent(TypedDict):
    role: Literal["model"]
    parts: list[GeminiAnswerPart]

class GeminiCandidate(TypedDict):
    content: GeminiAnswerContent
    finishReason: GeminiFinishReason
    finishMessage: NotRequired[str]
    index: int
    logprobsResult: NotRequired[GeminiLogprobs]

class GeminiCandidatePiece(TypedDict):
    content: GeminiAnswerContent
    index: int
    logprobsResult: NotRequired[GeminiLogprobs]

class GeminiContent(TypedDict):
    role: NotRequired[str | None]
    parts: list[GeminiPart]

class GeminiInstruction(TypedDict):
    parts: list[GeminiPart]

class GeminiPiece(TypedDict):
    candidates: list[GeminiCandidatePiece]
    modelVersion: str
    responseId: str

class GeminiResponse(TypedDict):
    candidates: list[GeminiCandidate]
    usageMetadata: GeminiUsage
    modelVersion: str
    responseId: str

GeminiStreamed: TypeAlias = (
    GeminiResponse | GeminiPiece | GeminiInternal | GeminiUnavailable | GeminiInvalidArgument
)

GenerationOptions = TypedDict(
    "GenerationOptions",
    {
        "model": NotRequired[str | None],
        "stream": NotRequired[bool | None],
        "stream_options": NotRequired[StreamOptions | None],
        "n_predict": NotRequired[float | None],
        "max_tokens": NotRequired[float | None],
        "max_completion_tokens": NotRequired[float | None],
        "stop": NotRequired[Stop],
        "n_keep": NotRequired[float | None],
        "n_discard": NotRequired[float | None],
        "cache_prompt": NotRequired[bool | None],
        "id_slot": NotRequired[float | None],
        "return_tokens": NotRequired[bool | None],
        "timings_per_token": NotRequired[bool | None],
        "n_cmpl": NotRequired[float | None],
        "n": NotRequired[float | None],
        "n_probs": NotRequired[float | None],
        "post_sampling_probs": NotRequired[bool | None],
        "grammar": NotRequired[str | None],
        "grammar_type": NotRequired[str | None],
        "generation_prompt": NotRequired[str | None],
        "reasoning_budget_tokens": NotRequired[int | None],
        "reasoning_budget_message": NotRequired[str | None],
        "reasoning_control": NotRequired[bool | None],
        "reasoning_budget_start_tag": NotRequired[str | None],
        "reasoning_budget_end_tags": NotRequired[list[str] | None],
        "reasoning_budget_end_tag": NotRequired[str | None],
        "grammar_lazy": NotRequired[bool | None],
        "grammar_triggers": NotRequired[list[GrammarTrigger] | None],
        "preserved_tokens": NotRequired[list[str] | None],
        "json_schema": NotRequired[JsonSchema | None],
        "response_format": NotRequired[ResponseFormat | None],
        "lora": NotRequired[list[LoraScale] | None],
        "n_indent": NotRequired[float | None],
        "t_max_predict_ms": NotRequired[float | None],
        "priority": NotRequired[RequestPriority | None],
        "timeout_ms": NotRequired[RequestTimeout | None],
        "t_max_prompt_ms": NotRequired[PromptTimeout | None],
        "return_queue": NotRequired[bool | None],
        "n_cache_reuse": NotRequired[float | None],
        "return_progress": NotRequired[bool | None],
        "response_fields": NotRequired[list[str] | None],
        "sse_ping_interval": NotRequired[float | None],
        "verbose": NotRequired[bool | None],
        "speculative": NotRequired[JsonObject | None],
        "speculative.n_max": NotRequired[float | None],
        "speculative.n_min": NotRequired[float | None],
        "speculative.p_min": NotRequired[float | None],
    },
)

GenerationSettings = TypedDict(
    "GenerationSettings",
    {
        "seed": int,
        "temperature": float,
        "dynatemp_range": float,
        "dynatemp_exponent": float,
        "top_k": int,
        "top_p": float,
        "min_p": float,
        "top_n_sigma": float,
        "xtc_probability": float,
        "xtc_threshold": float,
        "typical_p": float,
        "repeat_last_n": int,
        "repeat_penalty": float,
        "presence_penalty": float,
        "frequency_penalty": float,
        "dry_multiplier": float,
        "dry_base": float,
        "dry_allowed_length": int,
        "dry_penalty_last_n": int,
        "dry_sequence_breakers": list[str],
        "mirostat": MirostatVersion,
        "mirostat_tau": float,
        "mirostat_eta": float,
        "adaptive_target": float,
        "adaptive_decay": float,
        "stop": list[str],
        "max_tokens": int,
        "n_predict": int,
        "n_keep": int,
        "n_discard": int,
        "ignore_eos": bool,
        "stream": bool,
        "cache_prompt": bool,
        "n_cache_reuse": int,
        "id_slot": int,
        "return_tokens": bool,
        "logit_bias": list[AppliedLogitBias],
        "n_probs": int,
        "min_keep": int,
        "grammar": str,
        "json_schema": JsonSchema | None,
        "grammar_lazy": bool,
        "grammar_triggers": list[GrammarTrigger],
        "preserved_tokens": list[int],
        "chat_format": str,
        "reasoning_format": AppliedReasoningFormat,
        "reasoning_in_content": bool,
        "thinking_forced_open": bool,
        "generation_prompt": str,
        "samplers": list[AppliedSampler],
        "speculative.types": str,
        "speculative.n_max": int,
        "speculative.n_min": int,
        "speculative.p_min": float,
        "timings_per_token": bool,
        "return_progress": bool,
        "n_indent": int,
        "t_max_predict_ms": int,
        "post_sampling_probs": bool,
        "backend_sampling": bool,
        "json_whitespace": AppliedJsonWhitespace,
        "jump_forward": bool,
        "lora": list[LoraScale],
        "n_ctx": int,
        "model": str,
    },
)

IdOrPiece: TypeAlias = TokenId | TokenPiece

class ImageBlock(TypedDict):
    type: Literal["image"]
    source: ImageSource
    cache_control: NotRequired[CacheControl | None]

LogitBiasItem: TypeAlias = LogitBiasPair | LogitBiasEntry | NoBias

MessageContent: TypeAlias = str | list[MessagePart] | None

class MessagesOutputConfig(TypedDict):
    effort: NotRequired[str | None]
    format: NotRequired[MessagesOutputFormat | None]

class Model(TypedDict):
    id: str
    aliases: NotRequired[list[str]]
    tags: NotRequired[list[str]]
    object: Literal["model"]
    created: int
    owned_by: Literal["llamacpp"]
    path: str
    in_cache: bool
    source: ModelSource
    can_remove: bool
    architecture: ModelArchitecture
    status: ModelStatus
    memory: NotRequired[ModelMemory]
    meta: ModelMeta | None

class ModelEventData(TypedDict):
    status: NotRequired[ModelState]
    exit_code: NotRequired[int]
    waiting: NotRequired[ModelWaiting]
    progress: NotRequired[ModelProgress]

class NamedToolChoice(TypedDict):
    type: str
    name: NotRequired[str]
    namespace: NotRequired[str | None]
    mode: NotRequired[ResponseAllowedToolsMode]
    tools: NotRequired[list[ResponseAllowedTool]]
    function: NotRequired[ToolReference]
    custom: NotRequired[ToolReference]
    allowed_tools: NotRequired[AllowedTools]

OllamaChatLine: TypeAlias = OllamaChatPiece | OllamaChatAnswer | OllamaError

OllamaGenerateLine: TypeAlias = OllamaGeneratePiece | OllamaGenerateAnswer | OllamaError

class OllamaMessage(TypedDict):
    role: str
    content: NotRequired[MessageContent]
    thinking: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    images: NotRequired[list[str] | None]
    tool_calls: NotRequired[list[OllamaToolCallInput] | None]
    function_call: NotRequired[FunctionCallInput | None]
    tool_name: NotRequired[str | None]
    tool_call_id: NotRequired[OllamaCallId]
    name: NotRequired[str | None]

OllamaServerError: TypeAlias = ServerError | OllamaError

class OpenAICompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: TextFinishReason
    deadline: NotRequired[Deadline]

class OpenAICompletionDelta(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: None

class OtherBlock(TypedDict):
    type: NotRequired[str | None]
    text: NotRequired[Any]
    title: NotRequired[Any]
    source: NotRequired[Any]
    tool_name: NotRequired[Any]
    name: NotRequired[Any]
    tool: NotRequired[ToolChange | None]
    content: NotRequired[Any]

class PredictResponse(TypedDict):
    predictions: list[Prediction]

class PromptObject(TypedDict):
    prompt_string: PromptString
    multimodal_data: NotRequired[list[str] | None]

PromptPart: TypeAlias = int | str | TokensAndTexts | PromptObject

class ResponseCompacted(TypedDict):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[ResponseCompaction]
    usage: ResponseUsage | None

ResponseContentPart: TypeAlias = ResponseOutputText | ResponseReasoningText

class ResponseContentPartAddedEvent(TypedDict):
    type: Literal["response.content_part.added"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Literal[0]
    part: ResponseContentPart
    timings: NotRequired[Timings]

class ResponseContentPartDoneEvent(TypedDict):
    type: Literal["response.content_part.done"]
    sequence_number: int
    item_id: str
    output_index: int
    content_index: Literal[0]
    part: ResponseContentPart
    timings: NotRequired[Timings]

ResponseInputPart: TypeAlias = (
    ResponseInputText | ResponseInputRefusal | ResponseInputMedia | ResponseOtherPart
)

class ResponseOutputMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ResponseItemStatus
    content: list[ResponseOutputText]

class ResponseSteerPendingEvent(TypedDict):
    type: Literal["response.steer.pending"]
    steer: ResponseSteer
    reason: Literal["waiting_for_required_input"]
    required_input: list[ResponseSteerRequiredInput]
    sequence_number: int
    stream_id: NotRequired[str]

class ResponseStoredMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: str
    phase: NotRequired[str]
    status: ResponseItemStatus
    content: list[ResponseStoredPart]

ResponseStoredOutput: TypeAlias = str | list[ResponseStoredPart]

class ResponseTool(TypedDict):
    type: NotRequired[str | None]
    name: NotRequired[str]
    description: NotRequired[str | None]
    parameters: NotRequired[JsonSchema | None]
    strict: NotRequired[bool | None]
    format: NotRequired[JsonObject | None]
    execution: NotRequired[str | None]
    defer_loading: NotRequired[Any]
    tools: NotRequired[list[ResponseToolInNamespace] | None]
    function: NotRequired[FunctionTool | None]
    custom: NotRequired[CustomTool | None]

ResponseToolChoice: TypeAlias = ResponseToolChoiceMode | ResponseToolChoiceObject

class SelectedFields(TypedDict):
    index: NotRequired[int]
    content: NotRequired[str]
    tokens: NotRequired[list[int]]
    stop: NotRequired[Literal[True]]
    stop_type: NotRequired[StopType]
    deadline: NotRequired[Deadline]
    generation_settings: NotRequired[GenerationSettings]
    timings: NotRequired[Timings]
    completion_probabilities: NotRequired[list[TokenProbability]]

class ServerToolDefinition(TypedDict):
    type: Literal["function"]
    function: ServerToolFunction

SingleEmbeddingInput: TypeAlias = str | EmbeddingTokens | EmbeddingContent | PromptObject

SinglePrompt: TypeAlias = str | TokensAndTexts | PromptObject

class Slot(TypedDict):
    id: int
    id_task: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    params: SlotSettings
    prompt: NotRequired[str]
    generated: NotRequired[str]
    next_token: NextToken
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    n_prompt_tokens_shared: int
    n_prompt_tokens_restored: int
    n_prompt_tokens_from_files: NotRequired[int]
    cache_miss_reason: NotRequired[CacheMissReason | None]
    cache_miss_at: NotRequired[int | None]
    key_name: str
    priority: int

TokenList: TypeAlias = list[IdOrPiece]

class TokenizeResponse(TypedDict):
    tokens: TokenList

ToolChoice: TypeAlias = ToolChoiceMode | NamedToolChoice

ToolResult: TypeAlias = ToolText | ToolFailure | ToolFile | ToolFileChange | ToolPlace

class ChatCompletionChunkChoice(TypedDict):
    index: int
    delta: ChatCompletionDelta
    logprobs: NotRequired[ChatLogprobs | None]
    finish_reason: ChunkFinishReason | None
    deadline: NotRequired[Deadline]

class ChatMessage(TypedDict):
    role: str
    content: NotRequired[MessageContent]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCallInput] | None]
    function_call: NotRequired[FunctionCallInput | None]
    tool_call_id: NotRequired[CallId]
    name: NotRequired[Any]
    refusal: NotRequired[Any]
    audio: NotRequired[Any]

class CompletionResult(TypedDict):
    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    deadline: NotRequired[Deadline]
    timings: Timings
    completion_probabilities: NotRequired[list[TokenProbability]]

class Conversation(TypedDict):
    messages: list[ChatMessage]

class DocumentBlock(TypedDict):
    type: Literal["document"]
    source: DocumentSource
    title: NotRequired[str | None]
    context: NotRequired[str | None]
    citations: NotRequired[Any]
    cache_control: NotRequired[CacheControl | None]

EmbeddingListPart: TypeAlias = int | str | EmbeddingTokens | EmbeddingContent | PromptObject

class GeminiContext(TypedDict):
    systemInstruction: NotRequired[GeminiInstruction | None]
    tools: NotRequired[list[GeminiTool] | None]
    toolConfig: NotRequired[GeminiToolConfig | None]

class GeminiCountedRequest(TypedDict):
    contents: NotRequired[list[GeminiContent] | None]
    systemInstruction: NotRequired[GeminiInstruction | None]
    tools: NotRequired[list[GeminiTool] | None]
    toolConfig: NotRequired[GeminiToolConfig | None]
    generationConfig: NotRequired[GeminiGenerationConfig | None]

class GeminiRequest(GeminiContext, GeminiOptions):
    contents: list[GeminiContent]

GeminiStream: TypeAlias = list[GeminiStreamed]

ListedModel: TypeAlias = Model | NamedModel

ListedSlot: TypeAlias = Slot | UnusedSlot

LogitBias: TypeAlias = list[LogitBiasItem] | LogitBiasMap

class ModelEvent(TypedDict):
    model: str
    event: ModelEventName
    data: ModelEventData

class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ListedModel]
    models: list[ModelSummary]

class OpenAICompletionChunk(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[OpenAICompletionDelta]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
    __verbose: NotRequired[CompletionDelta]

PromptList: TypeAlias = list[PromptPart]

class Props(TypedDict):
    default_generation_settings: Slot
    total_slots: int
    model_alias: str
    model_ftype: str
    model_path: str
    modalities: ServerModalities
    media_marker: str
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    chat_template: str
    ui: bool
    ui_settings: UiSettings
    chat_template_tool_use: NotRequired[str]
    chat_template_caps: ChatTemplateCaps
    bos_token: str
    eos_token: str
    build_info: str
    devices: list[DeviceUse]
    is_sleeping: bool
    cors_proxy_enabled: Literal[False]
    role: ServerRole
    max_instances: NotRequired[int]
    models_autoload: NotRequired[bool]

class ResponseAdditionalTools(TypedDict):
    type: Literal["additional_tools"]
    id: NotRequired[str | None]
    role: NotRequired[str | None]
    tools: NotRequired[list[ResponseTool] | None]

ResponseInputContent: TypeAlias = str | list[ResponseInputPart] | None

class ResponseInputFunctionOutput(TypedDict):
    type: ResponseToolOutputType
    id: NotRequired[str | None]
    call_id: str
    output: ResponseInputContent
    status: NotRequired[str | None]

class ResponseInputMessage(TypedDict):
    type: NotRequired[Literal["message"] | None]
    id: NotRequired[str | None]
    role: str
    content: ResponseInputContent
    phase: NotRequired[str | None]
    status: NotRequired[str | None]

class ResponseInputSearchOutput(TypedDict):
    type: Literal["tool_search_output"]
    id: NotRequired[str | None]
    call_id: NotRequired[str | None]
    execution: NotRequired[str | None]
    tools: NotRequired[list[ResponseTool] | None]
    status: NotRequired[str | None]

ResponseOutputItem: TypeAlias = (
    ResponseOutputMessage
    | ResponseReasoning
    | ResponseFunctionCall
    | ResponseCustomCall
    | ResponseSearchCall
    | ResponseCompaction
)

class ResponseOutputItemAddedEvent(TypedDict):
    type: Literal["response.output_item.added"]
    sequence_number: int
    output_index: int
    item: ResponseOutputItem
    timings: NotRequired[Timings]

class ResponseOutputItemDoneEvent(TypedDict):
    type: Literal["response.output_item.done"]
    sequence_number: int
    output_index: int
    item: ResponseOutputItem
    timings: NotRequired[Timings]

class ResponseSteerMessage(TypedDict):
    type: NotRequired[Literal["message"]]
    role: Literal["user"]
    content: ResponseInputContent

class ResponseStoredFunctionOutput(TypedDict):
    id: str
    type: ResponseToolOutputType
    status: ResponseItemStatus
    call_id: str
    output: ResponseStoredOutput

class ResponseStoredSearchOutput(TypedDict):
    id: str
    type: Literal["tool_search_output"]
    status: ResponseItemStatus
    call_id: str
    execution: Literal["client"]
    tools: list[ResponseTool]

class ResponseStoredTools(TypedDict):
    id: str
    type: Literal["additional_tools"]
    status: ResponseItemStatus
    role: Literal["developer"]
    tools: list[ResponseTool]

class SamplingOptions(TypedDict):
    seed: NotRequired[float | None]
    samplers: NotRequired[Samplers]
    temperature: NotRequired[float | None]
    dynatemp_range: NotRequired[float | None]
    dynatemp_exponent: NotRequired[float | None]
    top_k: NotRequired[float | None]
    top_p: NotRequired[float | None]
    min_p: NotRequired[float | None]
    typical_p: NotRequired[float | None]
    top_n_sigma: NotRequired[float | None]
    xtc_probability: NotRequired[float | None]
    xtc_threshold: NotRequired[float | None]
    min_keep: NotRequired[float | None]
    repeat_last_n: NotRequired[float | None]
    repeat_penalty: NotRequired[float | None]
    presence_penalty: NotRequired[float | None]
    frequency_penalty: NotRequired[float | None]
    dry_multiplier: NotRequired[float | None]
    dry_base: NotRequired[float | None]
    dry_allowed_length: NotRequired[float | None]
    dry_penalty_last_n: NotRequired[float | None]
    dry_sequence_breakers: NotRequired[list[str] | None]
    mirostat: NotRequired[float | None]
    mirostat_tau: NotRequired[float | None]
    mirostat_eta: NotRequired[float | None]
    adaptive_target: NotRequired[float | None]
    adaptive_decay: NotRequired[float | None]
    logit_bias: NotRequired[LogitBias]
    ignore_eos: NotRequired[bool | None]
    backend_sampling: NotRequired[bool | None]
    json_whitespace: NotRequired[JsonWhitespace | None]
    jump_forward: NotRequired[bool | None]

class ServerTool(TypedDict):
    tool: str
    display_name: str
    type: ServerToolType
    permissions: ToolPermissions
    uses_cwd: bool
    definition: ServerToolDefinition

ServerToolList: TypeAlias = list[ServerTool]

SlotList: TypeAlias = list[ListedSlot]

class TemplateOptions(TypedDict):
    tools: NotRequired[list[Tool] | None]
    tool_choice: NotRequired[ToolChoice]
    parallel_tool_calls: NotRequired[bool | None]
    add_generation_prompt: NotRequired[bool | None]
    continue_final_message: NotRequired[Continuation]
    documents: NotRequired[list[ChatDocument] | None]
    chat_template_kwargs: NotRequired[ChatTemplateKwargs | None]
    reasoning_effort: NotRequired[str | None]
    reasoning: NotRequired[ChatReasoning | None]
    thinking: NotRequired[ChatThinking | None]
    enable_thinking: NotRequired[bool | None]
    reasoning_format: NotRequired[ReasoningFormat | None]
    thinking_forced_open: NotRequired[bool | None]
    parse_tool_calls: NotRequired[bool | None]
    response_format: NotRequired[ResponseFormat | None]

ToolResultPart: TypeAlias = TextBlockInput | ImageBlock | DocumentBlock | OtherBlock

VerboseResult: TypeAlias = CompletionResult | SelectedFields

class ApplyTemplateRequest(Conversation, TemplateOptions):
    model: NotRequired[ModelChoice | None]

class ChatCompletionChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChunkChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
    __verbose: NotRequired[VerboseResult]

ChatCompletionEvent: TypeAlias = (
    ChatCompletionChunk
    | ServerError
    | UnavailableError
    | InvalidRequestError
    | ContextSizeError
    | NotSupportedError
)

class ChatCompletionResponse(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChoice]
    usage: Usage
    timings: Timings
    __verbose: NotRequired[VerboseResult]

class ChatOptions(TemplateOptions, GenerationOptions, NoImageOptions, SamplingOptions):
    logprobs: NotRequired[bool | None]
    top_logprobs: NotRequired[int | None]
    thinking_budget_tokens: NotRequired[int | None]
    functions: NotRequired[list[FunctionTool | None] | None]
    function_call: NotRequired[FunctionChoice]
    echo: NotRequired[bool | None]
    modalities: NotRequired[list[Modality] | None]
    audio: NotRequired[JsonObject | None]
    web_search_options: NotRequired[JsonObject | None]
    user: NotRequired[str | None]
    metadata: NotRequired[JsonObject | None]
    store: NotRequired[bool | None]
    service_tier: NotRequired[str | None]
    prompt_cache_key: NotRequired[str | None]
    prompt_cache_options: NotRequired[Any]
    prompt_cache_retention: NotRequired[Any]
    verbosity: NotRequired[Any]
    moderation: NotRequired[Any]
    safety_identifier: NotRequired[str | None]
    prediction: NotRequired[JsonObject | None]

CompletionEvent: TypeAlias = (
    CompletionDelta
    | CompletionResult
    | SelectedFields
    | ServerError
    | UnavailableError
    | InvalidRequestError
    | ContextSizeError
    | NotSupportedError
)

CompletionListItem: TypeAlias = CompletionResult | SelectedFields

CompletionResponse: TypeAlias = CompletionResult | SelectedFields | list[CompletionListItem]

EmbeddingList: TypeAlias = list[EmbeddingListPart]

class GeminiCountRequest(TypedDict):
    contents: NotRequired[list[GeminiContent] | None]
    systemInstruction: NotRequired[GeminiInstruction | None]
    tools: NotRequired[list[GeminiTool] | None]
    toolConfig: NotRequired[GeminiToolConfig | None]
    generationConfig: NotRequired[GeminiGenerationConfig | None]
    generateContentRequest: NotRequired[GeminiCountedRequest | None]

class InfillRequest(GenerationOptions, NoImageOptions, SamplingOptions):
    input_prefix: InfillText
    input_suffix: InfillText
    input_extra: NotRequired[list[InfillSnippet] | None]
    prompt: NotRequired[str | None]
    logprobs: NotRequired[LogprobsChoice]

OllamaChatResponse: TypeAlias = OllamaChatAnswer | OllamaChatLoaded | ChatCompletionResponse

class OllamaOptions(SamplingOptions):
    num_predict: NotRequired[int | None]
    num_keep: NotRequired[int | None]
    stop: NotRequired[Stop]
    priority: NotRequired[RequestPriority | None]
    timeout_ms: NotRequired[RequestTimeout | None]
    t_max_prompt_ms: NotRequired[PromptTimeout | None]
    num_ctx: NotRequired[int | None]
    num_batch: NotRequired[int | None]
    num_gpu: NotRequired[int | None]
    main_gpu: NotRequired[int | None]
    num_thread: NotRequired[int | None]
    use_mmap: NotRequired[bool | None]
    tfs_z: NotRequired[Any]
    penalize_newline: NotRequired[Any]
    embedding_only: NotRequired[Any]
    logits_all: NotRequired[Any]
    f16_kv: NotRequired[Any]
    numa: NotRequired[Any]
    low_vram: NotRequired[Any]
    use_mlock: NotRequired[Any]
    vocab_only: NotRequired[Any]

class OpenAICompletionResponse(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[OpenAICompletionChoice]
    usage: Usage
    timings: NotRequired[Timings]
    __verbose: NotRequired[VerboseResult]

Prompt: TypeAlias = str | PromptList | PromptObject

ResponseInputItem: TypeAlias = (
    ResponseInputMessage
    | ResponseInputFunctionCall
    | ResponseInputFunctionOutput
    | ResponseInputCustomCall
    | ResponseInputSearchCall
    | ResponseInputSearchOutput
    | ResponseAdditionalTools
    | ResponseInputReasoning
    | ResponseInputCompaction
    | ResponseItemReference
    | ResponseOtherItem
)

class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: bool
    conversation: NotRequired[ResponseOfConversation | None]
    error: ResponseFailure | None
    incomplete_details: ResponseIncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: ResponseMetadata
    model: str
    output: list[ResponseOutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ResponseReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: ResponseTextSettings
    tool_choice: ResponseToolChoice
    tools: list[ResponseOfferedTool]
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: ResponseTruncation
    usage: ResponseUsage | None
    user: str | None

ResponseSteerInput: TypeAlias = str | list[ResponseSteerMessage]

ResponseStoredItem: TypeAlias = (
    ResponseStoredMessage
    | ResponseReasoning
    | ResponseFunctionCall
    | ResponseCustomCall
    | ResponseSearchCall
    | ResponseStoredFunctionOutput
    | ResponseStoredSearchOutput
    | ResponseStoredTools
    | ResponseCompaction
)

ToolResultContent: TypeAlias = str | list[ToolResultPart] | None

class WholeResponse(ResponseObject):
    timings: Timings

class BackgroundResponse(ResponseObject):
    pass

class ChatCompletionRequest(Conversation, ChatOptions):
    pass

class CompletionRequest(GenerationOptions, ImageOptions, SamplingOptions):
    prompt: Prompt
    logprobs: NotRequired[LogprobsChoice]

class ConversationAddition(TypedDict):
    items: list[ResponseInputItem]

class ConversationCreation(TypedDict):
    items: NotRequired[list[ResponseInputItem] | None]
    metadata: NotRequired[ResponseRequestMetadata | None]

class ConversationItemList(TypedDict):
    object: Literal["list"]
    data: list[ResponseStoredItem]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False]

CreatedResponse: TypeAlias = WholeResponse | BackgroundResponse

EmbeddingInput: TypeAlias = str | EmbeddingList | EmbeddingContent | PromptObject | None

class EmbeddingRequest(TypedDict):
    input: NotRequired[EmbeddingInput]
    content: NotRequired[EmbeddingInput]
    image_data: NotRequired[list[ImageData] | None]
    model: NotRequired[str | None]
    embd_normalize: NotRequired[int | None]
    encoding_format: NotRequired[EmbeddingEncoding | None]
    dimensions: NotRequired[int | None]
    priority: NotRequired[RequestPriority | None]
    timeout_ms: NotRequired[InputTimeout | None]
    user: NotRequired[str | None]

OllamaGenerationOptions: TypeAlias = OllamaNoOptions | OllamaOptions

OpenAICompletionEvent: TypeAlias = (
    OpenAICompletionChunk
    | OpenAICompletionResponse
    | ServerError
    | UnavailableError
    | InvalidRequestError
    | ContextSizeError
    | NotSupportedError
)

class OpenAICompletionRequest(GenerationOptions, ImageOptions, SamplingOptions):
    prompt: Prompt
    logprobs: NotRequired[LogprobsChoice]
    echo: NotRequired[bool | None]
    suffix: NotRequired[str | None]
    best_of: NotRequired[int | None]
    user: NotRequired[Any]

class OpenAIEmbeddingRequest(TypedDict):
    input: NotRequired[EmbeddingInput]
    content: NotRequired[EmbeddingInput]
    image_data: NotRequired[list[ImageData] | None]
    model: NotRequired[str | None]
    embd_normalize: NotRequired[int | None]
    encoding_format: NotRequired[EmbeddingEncoding | None]
    dimensions: NotRequired[int | None]
    priority: NotRequired[RequestPriority | None]
    timeout_ms: NotRequired[InputTimeout | None]
    user: NotRequired[str | None]

class ResponseCompletedEvent(TypedDict):
    type: Literal["response.completed"]
    sequence_number: int
    response: ResponseObject
    timings: Timings

class ResponseCreatedEvent(TypedDict):
    type: Literal["response.created"]
    sequence_number: int
    response: ResponseObject

class ResponseFailedEvent(TypedDict):
    type: Literal["response.failed"]
    sequence_number: int
    response: ResponseObject

class ResponseInProgressEvent(TypedDict):
    type: Literal["response.in_progress"]
    sequence_number: int
    response: ResponseObject
    prompt_progress: NotRequired[PromptProgress]

class ResponseIncompleteEvent(TypedDict):
    type: Literal["response.incomplete"]
    sequence_number: int
    response: ResponseObject
    timings: Timings

ResponseInput: TypeAlias = str | list[ResponseInputItem] | None

class ResponseItemPage(TypedDict):
    object: Literal["list"]
    data: list[ResponseStoredItem]
    first_id: str | None
    last_id: str | None
    has_more: bool

class ResponseRequest(GenerationOptions, NoImageOptions, SamplingOptions):
    thinking_budget_tokens: NotRequired[int | None]
    input: NotRequired[ResponseInput]
    instructions: NotRequired[str | None]
    previous_response_id: NotRequired[str | None]
    store: NotRequired[bool | None]
    max_output_tokens: NotRequired[int | None]
    tools: NotRequired[list[ResponseTool] | None]
    tool_choice: NotRequired[ResponseToolChoice]
    parallel_tool_calls: NotRequired[bool | None]
    max_tool_calls: NotRequired[float | None]
    text: NotRequired[ResponseTextOptions | None]
    reasoning: NotRequired[ResponseReasoningOptions | None]
    truncation: NotRequired[str | None]
    context_management: NotRequired[list[ResponseContextRule] | None]
    include: NotRequired[list[str] | None]
    top_logprobs: NotRequired[int | None]
    metadata: NotRequired[ResponseRequestMetadata | None]
    chat_template_kwargs: NotRequired[ChatTemplateKwargs | None]
    background: NotRequired[bool | None]
    background_options: NotRequired[Any]
    generate: NotRequired[bool | None]
    conversation: NotRequired[ResponseConversation]
    prompt: NotRequired[JsonObject | None]
    user: NotRequired[str | None]
    safety_identifier: NotRequired[str | None]
    moderation: NotRequired[Any]
    prompt_cache_key: NotRequired[str | None]
    prompt_cache_options: NotRequired[Any]
    prompt_cache_retention: NotRequired[Any]
    service_tier: NotRequired[str | None]

ResponseSocketEvent: TypeAlias = (
    ResponseCreatedEvent
    | ResponseInProgressEvent
    | ResponseOutputItemAddedEvent
    | ResponseContentPartAddedEvent
    | ResponseReasoningTextDeltaEvent
    | ResponseReasoningTextDoneEvent
    | ResponseTextDeltaEvent
    | ResponseTextDoneEvent
    | ResponseArgumentsDeltaEvent
    | ResponseArgumentsDoneEvent
    | ResponseCustomInputDeltaEvent
    | ResponseCustomInputDoneEvent
    | ResponseContentPartDoneEvent
    | ResponseOutputItemDoneEvent
    | ResponseCompletedEvent
    | ResponseIncompleteEvent
    | ResponseFailedEvent
    | ResponseSocketError
    | ResponseSteerAcceptedEvent
    | ResponseSteerPendingEvent
    | ResponseSteerFailedEvent
)

class ResponseSteerEvent(TypedDict):
    type: Literal["response.steer"]
    previous_response_id: str
    input: ResponseSteerInput

class ToolResultBlock(TypedDict):
    type: Literal["tool_result"]
    tool_use_id: NotRequired[str]
    content: NotRequired[ToolResultContent]
    is_error: NotRequired[bool | None]
    cache_control: NotRequired[CacheControl | None]

InputBlock: TypeAlias = (
    TextBlockInput
    | ImageBlock
    | DocumentBlock
    | ToolResultBlock
    | ThinkingBlockInput
    | RedactedThinkingBlock
    | ToolUseBlockInput
    | OtherBlock
)

class OllamaChatRequest(ChatOptions):
    messages: list[OllamaMessage]
    options: NotRequired[OllamaGenerationOptions]
    format: NotRequired[OllamaFormat]
    think: NotRequired[OllamaThink]
    keep_alive: NotRequired[OllamaKeepAlive]

class OllamaEmbedRequest(TypedDict):
    model: NotRequired[str | None]
    input: NotRequired[OllamaEmbedInput]
    truncate: NotRequired[bool | None]
    dimensions: NotRequired[int | None]
    options: NotRequired[OllamaGenerationOptions]
    keep_alive: NotRequired[OllamaKeepAlive]

class OllamaEmbeddingsRequest(TypedDict):
    model: NotRequired[str | None]
    prompt: NotRequired[str | None]
    options: NotRequired[OllamaGenerationOptions]
    keep_alive: NotRequired[OllamaKeepAlive]

class OllamaGenerateRequest(TypedDict):
    model: NotRequired[str | None]
    prompt: NotRequired[str | None]
    suffix: NotRequired[str | None]
    system: NotRequired[str | None]
    template: NotRequired[str | None]
    raw: NotRequired[bool | None]
    context: NotRequired[list[int] | None]
    images: NotRequired[list[str] | None]
    stream: NotRequired[bool | None]
    logprobs: NotRequired[bool | None]
    top_logprobs: NotRequired[int | None]
    options: NotRequired[OllamaGenerationOptions]
    format: NotRequired[OllamaFormat]
    think: NotRequired[OllamaThink]
    keep_alive: NotRequired[OllamaKeepAlive]

class ResponseCompactRequest(TypedDict):
    model: str
    input: NotRequired[ResponseInput]
    previous_response_id: NotRequired[str | None]
    instructions: NotRequired[str | None]
    prompt_cache_key: NotRequired[str | None]
    prompt_cache_options: NotRequired[Any]
    prompt_cache_retention: NotRequired[Any]
    service_tier: NotRequired[str | None]

class ResponseCreateEvent(ResponseRequest, ResponseCreateEventFields):
    pass

ResponseEvent: TypeAlias = (
    ResponseCreatedEvent
    | ResponseInProgressEvent
    | ResponseOutputItemAddedEvent
    | ResponseContentPartAddedEvent
    | ResponseReasoningTextDeltaEvent
    | ResponseReasoningTextDoneEvent
    | ResponseTextDeltaEvent
    | ResponseTextDoneEvent
    | ResponseArgumentsDeltaEvent
    | ResponseArgumentsDoneEvent
    | ResponseCustomInputDeltaEvent
    | ResponseCustomInputDoneEvent
    | ResponseContentPartDoneEvent
    | ResponseOutputItemDoneEvent
    | ResponseCompletedEvent
    | ResponseIncompleteEvent
    | ResponseFailedEvent
    | ResponseErrorEvent
)

ResponseSocketRequest: TypeAlias = ResponseCreateEvent | ResponseSteerEvent

Blocks: TypeAlias = list[InputBlock] | None

MessagesContent: TypeAlias = str | Blocks | None

class MessagesMessage(TypedDict):
    role: str
    content: NotRequired[MessagesContent]

MessagesSystem: TypeAlias = str | Blocks | None

class MessagesInput(TypedDict):
    model: NotRequired[str | None]
    messages: list[MessagesMessage]
    system: NotRequired[MessagesSystem]
    tools: NotRequired[list[MessagesTool] | None]
    tool_choice: NotRequired[MessagesToolChoice | None]
    thinking: NotRequired[MessagesThinking | None]
    output_config: NotRequired[MessagesOutputConfig | None]
    output_format: NotRequired[MessagesOutputFormat | None]
    chat_template_kwargs: NotRequired[ChatTemplateKwargs | None]
    container: NotRequired[Any]
    mcp_servers: NotRequired[list[McpServer] | None]
    thread: NotRequired[JsonObject | None]
    cache_control: NotRequired[CacheControl | None]
    context_management: NotRequired[JsonObject | None]
    metadata: NotRequired[JsonObject | None]
    service_tier: NotRequired[str | None]
    diagnostics: NotRequired[Any]
    speed: NotRequired[Any]
    inference_geo: NotRequired[Any]

class MessagesRequest(MessagesInput, GenerationOptions, NoImageOptions, SamplingOptions):
    max_tokens: NotRequired[float | None]
    stop_sequences: NotRequired[list[str] | None]
    messages: list[MessagesMessage]
