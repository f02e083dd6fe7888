// Prints the prompts that Ollama renders from chats with a TEMPLATE. It uses Go's own text/template and Ollama's rules for messages:
// consecutive messages of one role are joined by a blank line, and SYSTEM comes first unless the first message is a system message.
//
// Standard input: {"template": text, "system": text, "chats": [[{"role": text, "content": text}]]}. Standard output: a list of prompts.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"
	"text/template"
)

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type request struct {
	Template string      `json:"template"`
	System   string      `json:"system"`
	Chats    [][]message `json:"chats"`
}

func joined(system string, messages []message) []message {
	var all []message
	if system != "" && (len(messages) == 0 || messages[0].Role != "system") {
		all = append(all, message{"system", system})
	}
	for _, next := range messages {
		if last := len(all) - 1; last >= 0 && all[last].Role == next.Role && next.Role != "tool" {
			all[last].Content += "\n\n" + next.Content
			continue
		}
		all = append(all, next)
	}
	return all
}

func main() {
	var input request
	if err := json.NewDecoder(os.Stdin).Decode(&input); err != nil {
		log.Fatal(err)
	}
	parsed, err := template.New("").Option("missingkey=zero").Parse(input.Template)
	if err != nil {
		log.Fatal(err)
	}
	prompts := []string{}
	for _, messages := range input.Chats {
		var prompt strings.Builder
		all := joined(input.System, messages)
		var systems []string
		for _, message := range all {
			if message.Role == "system" {
				systems = append(systems, message.Content)
			}
		}
		values := map[string]any{"Messages": all, "System": strings.Join(systems, "\n\n"), "Response": ""}
		if err := parsed.Execute(&prompt, values); err != nil {
			log.Fatal(err)
		}
		prompts = append(prompts, prompt.String())
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(prompts); err != nil {
		log.Fatal(err)
	}
}
