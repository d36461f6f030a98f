// Package prompts holds the prompts of llmrun compare, and reads others from files of the same form.
package prompts

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed builtin.yaml
var builtin string

// What Prompt.BOS and Prompt.Expect may say.
const (
	BOSAuto = "auto" // as the model's tokenizer does by itself
	BOSOn   = "on"
	BOSOff  = "off"

	ExpectMatch   = "match"   // the prompt can show a difference, and both sides must agree
	ExpectVacuous = "vacuous" // the run could not have failed, and compare must say so
)

// A Prompt is one text, or one list of ids, to decode from.
type Prompt struct {
	ID     string
	Text   string
	BOS    string   // BOSAuto, BOSOn or BOSOff; ids are taken as they are
	IDs    []int    // instead of Text
	Models []string // the models it is meant for; empty: all
	Expect string   // ExpectMatch or ExpectVacuous
}

// MeantFor reports whether the prompt is meant for a model.
func (p Prompt) MeantFor(model string) bool {
	return len(p.Models) == 0 || slices.Contains(p.Models, model)
}

// Builtin returns the built-in prompts that are meant for a model.
func Builtin(model string) []Prompt {
	all, err := parse("builtin.yaml", strings.NewReader(builtin))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return slices.DeleteFunc(all, func(p Prompt) bool { return !p.MeantFor(model) })
}

// Load reads prompts from a YAML file, which is a list as builtin.yaml is. Its errors name the file and the line.
func Load(file string) ([]Prompt, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read prompts: %w", err)
	}
	defer f.Close()
	return parse(file, f)
}

func parse(file string, r io.Reader) ([]Prompt, error) {
	decoder := yaml.NewDecoder(r)
	var document, rest yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: want a list of prompts, the file is empty", file)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if decoder.Decode(&rest) == nil {
		return nil, fmt.Errorf("%s:%d: want one document, found a second", file, rest.Line)
	}
	list := document.Content[0]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, fmt.Errorf("%s:%d: want a list of prompts", file, list.Line)
	}
	var all []Prompt
	lines := map[string]int{} // by id
	for _, node := range list.Content {
		p, err := prompt(node)
		if err != nil {
			return nil, fmt.Errorf("%s:%w", file, err)
		}
		if line, taken := lines[p.ID]; taken {
			return nil, fmt.Errorf("%s:%d: id %q is taken by the prompt in line %d", file, node.Line, p.ID, line)
		}
		lines[p.ID] = node.Line
		all = append(all, p)
	}
	return all, nil
}

// prompt reads one entry of the list. Its errors begin with the line.
func prompt(node *yaml.Node) (Prompt, error) {
	p := Prompt{BOS: BOSAuto, Expect: ExpectMatch}
	if node.Kind != yaml.MappingNode {
		return p, fmt.Errorf("%d: want a prompt with id and text", node.Line)
	}
	targets := map[string]any{
		"id": &p.ID, "text": &p.Text, "bos": &p.BOS, "ids": &p.IDs, "models": &p.Models, "expect": &p.Expect,
	}
	seen := map[string]bool{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		target, ok := targets[key.Value]
		if !ok {
			return p, fmt.Errorf("%d: unknown key %q (want id, text, ids, bos, models, expect)", key.Line, key.Value)
		}
		if seen[key.Value] {
			return p, fmt.Errorf("%d: key %q is there twice", key.Line, key.Value)
		}
		seen[key.Value] = true
		if err := value.Decode(target); err != nil {
			return p, fmt.Errorf("%d: %s: want %s", value.Line, key.Value, wanted(target))
		}
	}
	return p, check(p, node.Line, seen)
}

func wanted(target any) string {
	switch target.(type) {
	case *[]int:
		return "a list of token ids"
	case *[]string:
		return "a list of names"
	}
	return "a string"
}

func check(p Prompt, line int, seen map[string]bool) error {
	switch {
	case p.ID == "":
		return fmt.Errorf("%d: prompt without an id", line)
	case seen["text"] == seen["ids"]:
		return fmt.Errorf("%d: prompt %q: want either text or ids", line, p.ID)
	case seen["ids"] && len(p.IDs) == 0:
		return fmt.Errorf("%d: prompt %q: ids is empty", line, p.ID)
	case seen["ids"] && seen["bos"]:
		return fmt.Errorf("%d: prompt %q: bos is for text, ids are taken as they are", line, p.ID)
	case !slices.Contains([]string{BOSAuto, BOSOn, BOSOff}, p.BOS):
		return fmt.Errorf("%d: prompt %q: bos: want auto, on or off, found %q", line, p.ID, p.BOS)
	case !slices.Contains([]string{ExpectMatch, ExpectVacuous}, p.Expect):
		return fmt.Errorf("%d: prompt %q: expect: want match or vacuous, found %q", line, p.ID, p.Expect)
	}
	for _, id := range p.IDs {
		if id < 0 {
			return fmt.Errorf("%d: prompt %q: token id %d is negative", line, p.ID, id)
		}
	}
	return nil
}
