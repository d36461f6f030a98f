package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"llmrun/internal/ctconv"
)

// table writes rows with aligned columns; a row of no cells is an empty line.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

func (r *inspection) text(w io.Writer, m *ctconv.Model, o inspectOptions) error {
	tables := [][][]string{r.headerRows(m), flagRows(r.Flags)}
	if o.tensors || o.stats {
		tables = append(tables, tensorRows(r.Tensors, o.stats))
	}
	if o.hf != "" {
		tables = append(tables, auditRows(r.Audit))
	}
	for i, rows := range tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if unwritten := unwrittenFlags(r.Flags); unwritten != "" {
		fmt.Fprintf(w, "\nnot written: %s\n", unwritten)
	}
	for _, f := range r.Findings {
		if _, err := fmt.Fprintln(w, "finding:", f); err != nil {
			return err
		}
	}
	return nil
}

func (r *inspection) headerRows(m *ctconv.Model) [][]string {
	h, v := r.Header, r.Vocabulary
	var types []string
	for _, name := range slices.Sorted(maps.Keys(h.DTypes)) {
		types = append(types, fmt.Sprintf("%d %s", h.DTypes[name], name))
	}
	epsilon := "absent: 1e-5 with a beta, 1e-6 without"
	if h.Epsilon != nil {
		epsilon = fmt.Sprint(*h.Epsilon)
	}
	rows := [][]string{
		{"model", r.Model},
		{"file", fmt.Sprintf("%s, %d bytes", h.File, h.Bytes)},
		{"format", fmt.Sprintf("binary version %d, %s revision %d", h.Version, h.Spec, h.Revision)},
		{"contents", fmt.Sprintf("%d layers, %d parameters, %d variables and %d aliases", h.Layers, h.Parameters, h.Variables, h.Aliases)},
		{"arrays", strings.Join(types, ", ")},
		{"norm epsilon", epsilon},
		{"vocabulary", fmt.Sprintf("%d tokens, %d made up as padding, %d twice or more", v.Size, v.Padding, len(v.Duplicates))},
		{"bos", special(v.BOS)}, {"eos", special(v.EOS)}, {"unk", special(v.Unk)},
		{"tokenizer", cmp.Or(strings.Join(v.Tokenizer, ", "), "none")},
		{"alignment", alignment(r.Alignment, "weights") + "; llmrun does not"},
	}
	for _, t := range m.Sorted() {
		if t.AliasOf != "" {
			rows = append(rows, []string{"alias", t.Name + " → " + t.AliasOf})
		}
	}
	return rows
}

func special(s ctconv.Special) string {
	if s.ID == nil {
		return fmt.Sprintf("%q, not in the vocabulary", s.Token)
	}
	return fmt.Sprintf("%q, id %d", s.Token, *s.ID)
}

func alignment(a ctconv.Alignment, what string) string {
	return fmt.Sprintf("%d of %d %s start off their element size: never map them as arrays", a.Off, a.Arrays, what)
}

func flagRows(flags []ctconv.Flag) [][]string {
	rows := [][]string{{"option", "value", "layers", "when absent", "effect"}}
	for _, f := range flags {
		if f.Value != "" {
			rows = append(rows, []string{f.Name, f.Value, cmp.Or(f.Layers, "–"), f.Default, f.Effect})
		}
	}
	return rows
}

// unwrittenFlags lists the options that the file leaves to their defaults: "scale_outputs (1), …".
func unwrittenFlags(flags []ctconv.Flag) string {
	var list []string
	for _, f := range flags {
		if f.Value == "" {
			list = append(list, fmt.Sprintf("%s (%s)", strings.TrimPrefix(strings.TrimPrefix(f.Name, "decoder/"), "layer_N/"), f.Default))
		}
	}
	return strings.Join(list, ", ")
}

func tensorRows(tensors []inspectedTensor, stats bool) [][]string {
	head := []string{"tensor", "type", "shape", "offset", "mod 2", "4", "16", "64"}
	if stats {
		head = append(head, "min", "max", "mean", "rms", "NaN", "Inf")
	}
	rows := [][]string{head}
	for _, t := range tensors {
		row := []string{t.Name, t.DType, fmt.Sprint(t.Shape), fmt.Sprint(t.Offset),
			fmt.Sprint(t.Mod.By2), fmt.Sprint(t.Mod.By4), fmt.Sprint(t.Mod.By16), fmt.Sprint(t.Mod.By64)}
		switch {
		case t.AliasOf != "":
			row = append(row, "→ "+t.AliasOf)
		case t.Stats != nil:
			row = append(row, statCells(*t.Stats)...)
		}
		rows = append(rows, row)
	}
	return rows
}

func statCells(s ctconv.Stats) []string {
	return []string{s.Min.String(), s.Max.String(), fmt.Sprintf("%.4g", float64(s.Mean)), fmt.Sprintf("%.4g", float64(s.RMS)), fmt.Sprint(s.NaN), fmt.Sprint(s.Inf)}
}

func auditRows(audit []ctconv.Row) [][]string {
	rows := [][]string{{"field", "declared", "written", "verdict", "can explain"}}
	for _, r := range audit {
		verdict := string(r.Verdict)
		if r.Ignored {
			verdict += " (ignored)"
		}
		rows = append(rows, []string{r.Field, r.Declared, r.Written, verdict, r.Explains})
	}
	return rows
}

func (t inspectedTensor) text(w io.Writer) error {
	if err := table(w, tensorRows([]inspectedTensor{t}, true)); err != nil {
		return err
	}
	for i, row := range t.Values {
		cells := make([]string, len(row))
		for c, v := range row {
			cells[c] = v.String()
		}
		if _, err := fmt.Fprintf(w, "%d: %s\n", *t.First+i, strings.Join(cells, " ")); err != nil {
			return err
		}
	}
	return nil
}

func safetensorsText(w io.Writer, s *ctconv.Safetensors, o inspectOptions) error {
	rows := [][]string{
		{"file", fmt.Sprintf("%s, %d bytes", s.File, s.Bytes)},
		{"header", fmt.Sprintf("%d bytes after the 8 of its length, %d arrays", s.HeaderBytes, len(s.Tensors))},
		{"data start", fmt.Sprintf("byte %d: mod 2 %d, mod 4 %d, mod 8 %d", s.DataStart, s.DataStart%2, s.DataStart%4, s.DataStart%8)},
		{"alignment", alignment(s.Alignment, "arrays")},
	}
	if s.Alignment.Off == 0 {
		rows[3][1] = fmt.Sprintf("all %d arrays start on their element size", s.Alignment.Arrays)
	}
	if err := table(w, rows); err != nil {
		return err
	}
	rows = [][]string{{"array", "type", "shape", "offset", "mod 2", "4", "16", "64", ""}}
	for _, t := range s.Tensors {
		if t.Off || o.tensors {
			off := ""
			if t.Off {
				off = "misaligned"
			}
			rows = append(rows, []string{t.Name, t.DType, fmt.Sprint(t.Shape), fmt.Sprint(t.Offset),
				fmt.Sprint(t.Mod.By2), fmt.Sprint(t.Mod.By4), fmt.Sprint(t.Mod.By16), fmt.Sprint(t.Mod.By64), off})
		}
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintln(w)
	return table(w, rows)
}
