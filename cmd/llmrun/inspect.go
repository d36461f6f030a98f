package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"llmrun/internal/ctconv"
	"llmrun/internal/models"
	"llmrun/internal/near"
)

// inspectOptions are the flags of convert-inspect.
type inspectOptions struct {
	tensors, stats, json bool
	tensor, rows, hf     string
	ignore               []string
}

// inspection is the answer of convert-inspect on a converted model, and its JSON.
type inspection struct {
	Schema     string                   `json:"schema"`
	Model      string                   `json:"model"` // directory, or name of an embedded model
	Header     ctconv.Header            `json:"header"`
	Flags      []ctconv.Flag            `json:"flags"`
	Tensors    []inspectedTensor        `json:"tensors"`
	Vocabulary ctconv.VocabularySummary `json:"vocabulary"`
	Audit      []ctconv.Row             `json:"audit"`
	Alignment  ctconv.Alignment         `json:"alignment"`
	Findings   []string                 `json:"findings"`
	Exit       int                      `json:"exit"`
}

type inspectedTensor struct {
	Name    string            `json:"name"`
	Shape   []int             `json:"shape"`
	DType   string            `json:"dtype"`
	Offset  int64             `json:"offset"`
	Mod     ctconv.Mod        `json:"mod"`
	AliasOf string            `json:"alias_of,omitempty"`
	Stats   *ctconv.Stats     `json:"stats,omitempty"`
	First   *int              `json:"first_row,omitempty"` // of Values
	Values  [][]ctconv.Number `json:"values,omitempty"`
}

const inspectSchema = "llmrun.convert-inspect/1"

func newInspectCommand(app *app) *cobra.Command {
	var o inspectOptions
	c := &cobra.Command{
		Use:   "convert-inspect DIR|NAME|FILE.safetensors",
		Short: "Show what a converter wrote, and what it left out",
		Long: `convert-inspect shows what is in a converted model: header, options with their effect, vocabulary, tokenizer,
tensors and their alignment. With the original config.json it tells which declared values were written, changed or
dropped, and what such a loss can explain. Of a safetensors file it shows which arrays would be misaligned if mapped.

Exit code: 0 clean, 1 something is CHANGED, DROPPED or not finite, or an array of a safetensors file misaligned, 2 unreadable.`,
		Example: `  llmrun convert-inspect tiny-gemma2 --hf tiny-gemma2
  llmrun convert-inspect DIR --hf config.json --ignore final_logit_softcapping
  llmrun convert-inspect DIR --tensor decoder/embeddings/weight --rows 0:2
  llmrun convert-inspect model.safetensors`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("convert-inspect: want one model (a directory, a name or a .safetensors file), got %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if err := inspect(app, args[0], o); err != nil {
				return fmt.Errorf("convert-inspect: %w", err)
			}
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&o.tensors, "tensors", false, "list every tensor with its offset and alignment")
	f.BoolVar(&o.stats, "stats", false, "list every tensor with statistics of its values (reads the whole file)")
	f.StringVar(&o.tensor, "tensor", "", "show the tensor called `NAME` and nothing else")
	f.StringVar(&o.rows, "rows", "", "with --tensor, print the values of rows `A:B` (A up to but not including B)")
	f.StringVar(&o.hf, "hf", "", "compare with the original model's config.json, a `FILE|DIR`")
	f.StringSliceVar(&o.ignore, "ignore", nil, "with --hf, do not count the field `KEY` (repeatable)")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	return c
}

func inspect(app *app, name string, o inspectOptions) error {
	switch {
	case o.rows != "" && o.tensor == "":
		return fmt.Errorf("--rows needs --tensor NAME")
	case len(o.ignore) > 0 && o.hf == "":
		return fmt.Errorf("--ignore needs --hf FILE|DIR")
	case strings.HasSuffix(name, ".safetensors"):
		return inspectSafetensors(app, name, o)
	}
	m, source, err := models.Open(name)
	if err != nil {
		return err
	}
	defer m.Close()
	if o.tensor != "" {
		return inspectTensor(app, m, source, o)
	}
	r, err := inspectModel(m, source, o)
	if err != nil {
		return err
	}
	app.exit = r.Exit
	if o.json {
		return printJSON(app.stdout, r)
	}
	return r.text(app.stdout, m, o)
}

func inspectModel(m *ctconv.Model, source models.Source, o inspectOptions) (*inspection, error) {
	r := &inspection{Schema: inspectSchema, Model: source.String(), Header: m.Header(), Flags: m.Flags(), Vocabulary: m.VocabularySummary(),
		Audit: []ctconv.Row{}, Alignment: m.Alignment(), Findings: append([]string{}, m.Findings()...)}
	for _, t := range m.Sorted() {
		it := describe(t, o.stats)
		if s := it.Stats; s != nil && s.NaN+s.Inf > 0 {
			r.Findings = append(r.Findings, fmt.Sprintf("%s: %d NaN and %d infinite values of %d", t.Name, s.NaN, s.Inf, t.Elements()))
			r.Exit = 1
		}
		r.Tensors = append(r.Tensors, it)
	}
	if o.hf == "" {
		return r, nil
	}
	hf, err := readHF(source, o.hf)
	if err != nil {
		return nil, err
	}
	r.Audit = m.Audit(hf)
	if err := ignore(r.Audit, o.ignore); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(r.Audit, ctconv.Row.Bad) {
		r.Exit = 1
	}
	return r, nil
}

// readHF reads the original config from a path, or the one that an embedded model brings if it is named again.
func readHF(source models.Source, name string) (*ctconv.HF, error) {
	if !source.Embedded || name != source.Name {
		return ctconv.ReadHF(name)
	}
	const file = "hf_config.json"
	data, err := source.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return ctconv.ParseHF(path.Join(name, file), data)
}

// ignore marks the rows of the fields in keys.
func ignore(rows []ctconv.Row, keys []string) error {
	for _, key := range keys {
		i := slices.IndexFunc(rows, func(r ctconv.Row) bool { return r.Field == key })
		if i < 0 {
			var fields []string
			for _, r := range rows {
				fields = append(fields, r.Field)
			}
			return fmt.Errorf("--ignore %s: want a field of this comparison, which are %s", key, strings.Join(fields, ", "))
		}
		rows[i].Ignored = true
	}
	return nil
}

// describe turns a tensor into its line; an alias shares its values and so has no statistics.
func describe(t ctconv.Tensor, stats bool) inspectedTensor {
	it := inspectedTensor{Name: t.Name, Shape: t.Shape, DType: t.DType.String(), Offset: t.Offset, Mod: ctconv.ModOf(t.Offset), AliasOf: t.AliasOf}
	if stats && t.AliasOf == "" {
		s := t.Stats()
		it.Stats = &s
	}
	return it
}

func inspectTensor(app *app, m *ctconv.Model, source models.Source, o inspectOptions) error {
	t, ok := m.Tensor(o.tensor)
	if !ok {
		nearest := near.One(o.tensor, slices.Sorted(maps.Keys(m.Tensors)), "")
		next := "--tensors"
		if nearest != "" {
			next = "--tensor " + nearest
		}
		return hint(fmt.Errorf("%s: no variable %s", source, o.tensor), fmt.Sprintf("llmrun convert-inspect %s %s", source, next))
	}
	it := describe(t, false)
	s := t.Stats()
	it.Stats = &s
	if o.rows != "" {
		a, b, err := rowRange(o.rows, t)
		if err != nil {
			return err
		}
		it.First, it.Values = &a, t.Rows(a, b)
	}
	if s.NaN+s.Inf > 0 {
		app.exit = 1
	}
	if o.json {
		return printJSON(app.stdout, struct {
			Schema string          `json:"schema"`
			Tensor inspectedTensor `json:"tensor"`
			Exit   int             `json:"exit"`
		}{inspectSchema, it, app.exit})
	}
	return it.text(app.stdout)
}

// rowRange parses "A:B", where A may be missing for the first row and B for the last.
func rowRange(text string, t ctconv.Tensor) (a, b int, err error) {
	rows := 1
	if len(t.Shape) > 0 {
		rows = t.Shape[0]
	}
	first, last, ok := strings.Cut(text, ":")
	b = rows
	if first != "" {
		a, err = strconv.Atoi(first)
	}
	if last != "" && err == nil {
		b, err = strconv.Atoi(last)
	}
	if !ok || err != nil || a < 0 || a > b || b > rows {
		return 0, 0, fmt.Errorf("--rows %s: want A:B within 0:%d, the rows of %s", text, rows, t.Name)
	}
	return a, b, nil
}

func inspectSafetensors(app *app, file string, o inspectOptions) error {
	if o.hf != "" || o.tensor != "" || o.stats {
		return fmt.Errorf("%s: --hf, --tensor and --stats want a converted model; of a safetensors file only the header is read", file)
	}
	s, err := ctconv.OpenSafetensors(file)
	if err != nil {
		return err
	}
	if s.Alignment.Off > 0 {
		app.exit = 1
	}
	if o.json {
		return printJSON(app.stdout, struct {
			Schema string `json:"schema"`
			*ctconv.Safetensors
			Exit int `json:"exit"`
		}{inspectSchema, s, app.exit})
	}
	return safetensorsText(app.stdout, s, o)
}
