package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// model is a model that nothing is wrong with, and the arguments that compare it.
type model struct {
	name string
	args []string
}

// cleanModels lists the embedded models with their built-in prompts, and the golden ones with the prompts that their goldens
// were made from, in files below dir.
func cleanModels(dir string) ([]model, error) {
	all := []model{{"tiny-gemma2", []string{"--model", "tiny-gemma2"}}, {"tiny-qwen2", []string{"--model", "tiny-qwen2"}}}
	const golden = "testdata/golden"
	data, err := os.ReadFile(filepath.Join(golden, "manifest.json"))
	if err != nil {
		return nil, err
	}
	var requests []struct {
		Model  string
		Prompt []int
	}
	if err := json.Unmarshal(data, &requests); err != nil {
		return nil, fmt.Errorf("%s/manifest.json: %w", golden, err)
	}
	prompts := map[string][]string{} // by model, as YAML
	var names []string
	for _, r := range requests {
		if prompts[r.Model] == nil {
			names = append(names, r.Model)
		}
		ids := strings.ReplaceAll(fmt.Sprint(r.Prompt), " ", ", ")
		if known := func(line string) bool { return strings.HasSuffix(line, ", ids: "+ids+"}\n") }; !slices.ContainsFunc(prompts[r.Model], known) {
			prompts[r.Model] = append(prompts[r.Model], fmt.Sprintf("- {id: p%d, ids: %s}\n", len(prompts[r.Model])+1, ids))
		}
	}
	for _, name := range names {
		file := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(file, []byte(strings.Join(prompts[name], "")), 0o644); err != nil {
			return nil, err
		}
		all = append(all, model{name, []string{"--model", filepath.Join(golden, name), "--prompts", file}})
	}
	return all, nil
}
