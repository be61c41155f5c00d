// Uses the server with the Go client that openapi-generator generates.
package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	specllama "example.com/sdk/generated"
)

const model = "specllama-tiny"

var parameters = map[string]interface{}{
	"type": "object",
	"properties": map[string]interface{}{
		"city": map[string]interface{}{"type": "string", "enum": []string{"Lima", "Quito"}},
	},
	"required": []string{"city"},
}

func client(variable, name string) *specllama.APIClient {
	configuration := specllama.NewConfiguration()
	url := os.Getenv(variable) + "/" + name
	configuration.Servers = specllama.ServerConfigurations{{URL: url}}
	return specllama.NewAPIClient(configuration)
}

func texts(name string) *specllama.APIClient {
	return client("SERVER_URL", name)
}

func asking(text string) *specllama.ChatCompletionRequest {
	message := specllama.NewChatMessage("user")
	message.SetContent(specllama.MessageContent{String: &text})
	request := specllama.NewChatCompletionRequest([]specllama.ChatMessage{*message})
	request.SetModel(model)
	return request
}

func short() *specllama.ChatCompletionRequest {
	request := asking("How is the weather in Lima?")
	request.SetMaxCompletionTokens(8)
	request.SetTemperature(0)
	return request
}

func TestModels(t *testing.T) {
	answer, _, err := texts("models").ModelsAPI.ListOpenaiModels(context.Background()).Execute()
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Data) != 1 || answer.Data[0].Model == nil || answer.Data[0].Model.Id != model {
		t.Fatal(answer.Data)
	}
}

func TestSlots(t *testing.T) {
	answer, _, err := texts("slots").SlotsAPI.ListSlots(context.Background()).Execute()
	if err != nil {
		t.Fatal(err)
	}
	if len(answer) == 0 {
		t.Fatal("no slots")
	}
	used, unused := answer[0].Slot, answer[0].UnusedSlot
	if (used == nil) == (unused == nil) {
		t.Fatal("the slot is of no kind, or of both")
	}
}

func TestCompletion(t *testing.T) {
	prompt := "A llama"
	request := specllama.NewCompletionRequest(specllama.Prompt{String: &prompt})
	request.SetNPredict(8)
	request.SetTemperature(0)
	answer, _, err := texts("completion").CompletionAPI.CreateCompletion(context.Background()).
		CompletionRequest(*request).Execute()
	if err != nil {
		t.Fatal(err)
	}
	result := answer.CompletionResult
	if result == nil || result.Content == "" || result.TokensPredicted != 8 {
		t.Fatal(answer)
	}
}

func TestChat(t *testing.T) {
	answer, _, err := texts("chat").ChatAPI.CreateChatCompletion(context.Background()).
		ChatCompletionRequest(*short()).Execute()
	if err != nil {
		t.Fatal(err)
	}
	if answer.Choices[0].Message.GetContent() == "" || answer.Usage.CompletionTokens != 8 {
		t.Fatal(answer)
	}
}

func TestTools(t *testing.T) {
	weather := specllama.NewFunctionTool("weather")
	weather.SetParameters(parameters)
	tool := specllama.NewTool()
	tool.SetType("function")
	tool.SetFunction(*weather)
	required := specllama.TOOLCHOICEMODE_REQUIRED
	request := asking("How is the weather in Lima?")
	request.SetTemperature(0)
	request.SetTools([]specllama.Tool{*tool})
	request.SetToolChoice(specllama.ToolChoice{ToolChoiceMode: &required})
	request.SetParallelToolCalls(false)
	answer, _, err := texts("tools").ChatAPI.CreateChatCompletion(context.Background()).
		ChatCompletionRequest(*request).Execute()
	if err != nil {
		t.Fatal(err)
	}
	calls := answer.Choices[0].Message.GetToolCalls()
	if len(calls) != 1 || calls[0].FunctionToolCall == nil {
		t.Fatal(calls)
	}
	function := calls[0].FunctionToolCall.Function
	var arguments struct{ City string }
	if err := json.Unmarshal([]byte(function.Arguments), &arguments); err != nil {
		t.Fatal(err)
	}
	if function.Name != "weather" || (arguments.City != "Lima" && arguments.City != "Quito") {
		t.Fatal(function)
	}
}

func TestEmbeddings(t *testing.T) {
	one, other := "a llama", "a city"
	parts := []specllama.EmbeddingListPart{{String: &one}, {String: &other}}
	request := specllama.NewOpenAIEmbeddingRequest()
	request.SetModel(model)
	request.SetInput(specllama.EmbeddingInput{ArrayOfEmbeddingListPart: &parts})
	answer, _, err := client("EMBEDDINGS_URL", "embeddings").EmbeddingsAPI.
		CreateOpenaiEmbeddings(context.Background()).OpenAIEmbeddingRequest(*request).Execute()
	if err != nil {
		t.Fatal(err)
	}
	found := answer.OpenAIEmbeddingResponse
	if found == nil || len(found.Data) != 2 {
		t.Fatal(answer)
	}
}

func TestError(t *testing.T) {
	_, response, err := texts("error").ChatAPI.CreateChatCompletion(context.Background()).
		ChatCompletionRequest(*asking(strings.Repeat("llama ", 9000))).Execute()
	if response == nil || response.StatusCode != 400 {
		t.Fatal(response, err)
	}
	var failure *specllama.GenericOpenAPIError
	if !errors.As(err, &failure) {
		t.Fatal(err)
	}
	model, ok := failure.Model().(specllama.GenerationRequestError)
	if !ok || model.ContextSizeError == nil {
		t.Fatal(failure.Model())
	}
	message := model.ContextSizeError.Error.Message
	if !strings.Contains(message, "exceeds the available context size") {
		t.Fatal(message)
	}
}
