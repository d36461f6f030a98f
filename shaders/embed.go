// Package shaders holds the Metal source of every kernel, one file for each op or fused group of ops. What several kernels share lies in
// headers beside them, which Source puts into their place: Metal has no folders to include from.
//
// In all of them: T is the type of activations, W that of a matrix; a kernel takes its output first, then inputs, then weights, then its
// args; sums are float; fused multiply-adds are spelled out, and the compiler makes no others (fp contract), so that every one rounds
// alike; what may fail in a fast variant is spelled precise. Compilers before macOS 15 may not know the pragma math_mode, and skip it.
// Instances for bfloat, which Metal has from language version 3.1 on, stand under #if: it is asked for only where activations are bfloat.
package shaders

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// FS holds the *.metal files and the headers that they include.
//
//go:embed *.metal *.h
var FS embed.FS

// Files lists the *.metal files by name.
func Files() []string { return glob("*.metal") }

// Headers lists the headers by name.
func Headers() []string { return glob("*.h") }

func glob(pattern string) []string {
	files, err := fs.Glob(FS, pattern)
	if err != nil || len(files) == 0 {
		panic(fmt.Sprintf("BUG: shaders: %d files %s: %v", len(files), pattern, err))
	}
	return files
}

// Source gives a file's text with its headers in their place, each once, under their own names and lines. edit, if not nil, may change
// the text of each file first: a fault.
func Source(file string, edit func(file, text string) (string, error)) (string, error) {
	e := expansion{edit: edit}
	err := e.add(file)
	return e.text.String(), err
}

type expansion struct {
	text strings.Builder
	edit func(file, text string) (string, error)
	seen []string
}

func (e *expansion) add(file string) error {
	e.seen = append(e.seen, file)
	b, err := FS.ReadFile(file)
	if err != nil {
		return err
	}
	text := string(b)
	if e.edit != nil {
		if text, err = e.edit(file, text); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		header, ok := strings.CutPrefix(line, `#include "`)
		if !ok {
			e.text.WriteString(line)
			continue
		}
		header = strings.TrimSuffix(strings.TrimSpace(header), `"`)
		if slices.Contains(e.seen, header) {
			e.text.WriteString("\n")
			continue
		}
		fmt.Fprintf(&e.text, "#line 1 %q\n", header)
		if err := e.add(header); err != nil {
			return fmt.Errorf("%s:%d: %w", file, n, err)
		}
		fmt.Fprintf(&e.text, "#line %d %q\n", n+1, file)
	}
	return nil
}
