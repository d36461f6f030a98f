package main

import (
	"encoding/json"
	"fmt"

	"github.com/ardanlabs/jinja"
)

// chat applies the model's chat template to one message of the user.
func (o *opened) chat(text string) (string, error) {
	const file = "tokenizer_config.json"
	data, err := o.source.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--chat: %w", err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return "", fmt.Errorf("--chat: %s: %w", file, err)
	}
	source, ok := config["chat_template"].(string)
	if !ok {
		return "", fmt.Errorf("--chat: %s: want a chat_template, the file has none", file)
	}
	template, err := jinja.Compile(source)
	if err != nil {
		return "", fmt.Errorf("--chat: %s: chat_template: %w", file, err)
	}
	values := map[string]any{
		"messages":              []any{map[string]any{"role": "user", "content": text}},
		"add_generation_prompt": true,
	}
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		switch token := config[name].(type) {
		case string:
			values[name] = token
		case map[string]any: // {"content": "<bos>", …}
			values[name] = token["content"]
		}
	}
	prompt, err := template.Render(values)
	if err != nil {
		return "", fmt.Errorf("--chat: %s: chat_template: %w", file, err)
	}
	return prompt, nil
}
