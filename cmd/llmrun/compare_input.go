package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"llmrun/internal/engine"
	"llmrun/internal/metal"
	"llmrun/internal/models"
	"llmrun/internal/parity"
	"llmrun/prompts"
)

// promptList gives the prompts as ids: of -p, --ids, --prompts, or the built-in ones.
func (f *compareFlags) promptList(a *app, o *opened) (list []parity.Prompt, err error) {
	var chosen []prompts.Prompt
	switch {
	case f.ids != "":
		ids, err := o.ids(a, f.ids)
		return []parity.Prompt{{ID: "ids", IDs: ids, BOS: o.bos}}, err
	case f.prompts != "":
		if chosen, err = prompts.Load(f.prompts); err != nil {
			return nil, err
		}
	case f.text == "-":
		data, err := io.ReadAll(a.stdin)
		if err != nil {
			return nil, fmt.Errorf("read prompt: %w", err)
		}
		chosen = []prompts.Prompt{{ID: "stdin", Text: strings.TrimSuffix(string(data), "\n"), BOS: prompts.BOSAuto}}
	case f.text != "":
		chosen = []prompts.Prompt{{ID: "prompt", Text: f.text, BOS: prompts.BOSAuto}}
	default:
		chosen = prompts.Builtin(o.source.Name)
	}
	for _, p := range chosen {
		if !p.MeantFor(o.source.Name) {
			continue
		}
		ids, err := f.encode(a, o, p)
		if err != nil {
			return nil, fmt.Errorf("prompt %s: %w", p.ID, err)
		}
		list = append(list, parity.Prompt{ID: p.ID, IDs: ids, BOS: o.bos})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: no prompt is meant for model %s", f.prompts, o.source.Name)
	}
	return list, nil
}

// encode turns one prompt into ids. What a prompt says of BOS wins over the flag, and is no reason to warn.
func (f *compareFlags) encode(a *app, o *opened, p prompts.Prompt) ([]int, error) {
	if p.IDs != nil {
		return o.checkPrompt(p.IDs)
	}
	if p.BOS != prompts.BOSAuto {
		return o.prompt(&app{stderr: io.Discard}, p.Text, p.BOS)
	}
	return o.prompt(a, p.Text, f.bos)
}

// describe says what was compared, and where.
func (f *compareFlags) describe(c *parity.Comparison, o *opened, reference, candidate engine.Backend) error {
	c.Model.Name, c.Model.Dir = o.source.Name, o.source.Dir
	env := environment{Version: version(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Cores: runtime.NumCPU()}
	for _, side := range []struct {
		to *parity.Backend
		b  engine.Backend
	}{{&c.Reference, reference}, {&c.Candidate, candidate}} {
		if m, ok := side.b.(*mistaken); ok {
			side.b = m.inner
		}
		b, ok := side.b.(*metal.Backend)
		if !ok {
			continue
		}
		info := b.Info()
		side.to.Device, side.to.Host = info.Device, info.Host
		if info.Host {
			side.to.Device = "host device, " + info.Compiler
		}
		if info.Gemm == "mps" {
			side.to.Device += ", MPS"
		}
		if !info.Fuse {
			side.to.Device += ", unfused"
		}
		env.Metal = describeMetal(info)
	}
	c.Env = env
	if !f.json && f.faces.html == "" {
		return nil
	}
	var err error
	c.Model.SHA256, err = hashModel(o.source)
	return err
}

// environment is the part of the JSON that differs from machine to machine.
type environment struct {
	Version string      `json:"version"`
	System  string      `json:"system"`
	Go      string      `json:"go"`
	Cores   int         `json:"cores"`
	Metal   [][2]string `json:"metal"` // of the candidate; name and value
}

func (e environment) lines() [][2]string {
	return append([][2]string{{"llmrun", e.Version}, {"system", fmt.Sprintf("%s, %s, %d cores", e.System, e.Go, e.Cores)}}, e.Metal...)
}

// hashModel is the SHA-256 of model.bin, in hex.
func hashModel(s models.Source) (string, error) {
	h := sha256.New()
	if s.Embedded {
		data, err := s.ReadFile("model.bin")
		if err != nil {
			return "", err
		}
		h.Write(data)
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	file, err := os.Open(filepath.Join(s.Dir, "model.bin"))
	if err != nil {
		return "", fmt.Errorf("hash model: %w", err)
	}
	defer file.Close()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("hash model: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
