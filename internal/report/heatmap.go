package report

import (
	"fmt"
	"math"
	"slices"

	"llmrun/internal/ctconv"
	"llmrun/internal/parity"
	"llmrun/internal/shadow"
)

// maxColumns is how many steps a heatmap shows side by side; of more, it shows those that were judged.
const maxColumns = 40

// heatmap is one followed side as steps across and layers down.
type heatmap struct {
	*parity.Shadow
	Name  string // of the side
	Open  bool   // the culprit's
	Bad   int    // ops beyond their bounds, or with changed inputs
	Steps []int  // the columns; -1: steps left out
	Rows  []heatRow
}

type heatRow struct {
	Layer string
	Cells []heatCell
}

// heatCell is one layer in one pass.
type heatCell struct {
	Class, Sign, Title string
}

func newHeatmap(c *parity.Comparison, s *parity.Shadow) heatmap {
	h := heatmap{Shadow: s, Open: s == &c.Shadow[0] || len(s.Findings) > 0}
	h.Name, _ = names(c)
	if s.Side == "candidate" {
		_, h.Name = names(c)
	}
	cells, layers := map[[2]int]*shadow.Cell{}, []int{}
	for i := range s.Cells {
		cell := &s.Cells[i]
		h.Bad += cell.Bad
		cells[[2]int{cell.Step, cell.Layer}] = cell
		layers = append(layers, cell.Layer)
	}
	slices.Sort(layers)
	layers = slices.Compact(layers)
	if len(layers) > 0 && layers[0] < 0 { // what is outside the layers comes last, as most of it does
		layers = append(layers[1:], layers[0])
	}
	h.Steps = columns(c, s)
	for _, layer := range layers {
		row := heatRow{Layer: fmt.Sprint(layer)}
		if layer < 0 {
			row.Layer = "rest"
		}
		for _, step := range h.Steps {
			row.Cells = append(row.Cells, heat(cells[[2]int{step, layer}], step, layer, s.Findings))
		}
		h.Rows = append(h.Rows, row)
	}
	return h
}

// columns are the steps that a prompt had or, where those are too many, the judged ones, with -1 for each gap.
func columns(c *parity.Comparison, s *parity.Shadow) (list []int) {
	last := slices.Max(append([]int{0}, s.Steps...))
	for i := range c.Prompts {
		if c.Prompts[i].ID == s.Prompt {
			last = max(last, len(c.Prompts[i].Steps))
		}
	}
	first := 1
	if slices.Contains(s.Steps, 0) {
		first = 0
	}
	if last-first < maxColumns {
		for step := first; step <= last; step++ {
			list = append(list, step)
		}
		return list
	}
	for _, step := range slices.Sorted(slices.Values(s.Steps)) {
		if n := len(list); n > 0 && step > list[n-1]+1 {
			list = append(list, -1)
		}
		list = append(list, step)
	}
	return list
}

// bands divide error over allowed, each about three times the one before it.
var bands = []struct {
	upTo  float64
	Class string
	Label string
}{
	{0.01, "h0", "≤ 0.01"}, {0.03, "h1", "≤ 0.03"}, {0.1, "h2", "≤ 0.1"}, {0.3, "h3", "≤ 0.3"}, {0.7, "h4", "≤ 0.7"}, {1, "h5", "≤ 1"},
}

// Bands are the legend.
func (p *page) Bands() any { return bands }

func heat(c *shadow.Cell, step, layer int, findings []shadow.Finding) heatCell {
	if c == nil {
		return heatCell{Class: "none", Title: "not judged"}
	}
	title := fmt.Sprintf("step %d, layer %d", step, layer)
	if layer < 0 {
		title = fmt.Sprintf("step %d, outside the layers", step)
	}
	title += fmt.Sprintf(": %s is the worst, %s", c.Site, ratio(c.Ratio))
	if c.Bad > 0 {
		cell := heatCell{Class: "bad", Sign: "✗", Title: fmt.Sprintf("%s; %d beyond", title, c.Bad)}
		if i := slices.IndexFunc(findings, func(f shadow.Finding) bool { return f.Step == step && f.Layer == layer }); i >= 0 {
			cell.Sign, cell.Title = sign(&findings[i]), cell.Title+": "+findings[i].Site
		}
		return cell
	}
	return heatCell{Class: band(c.Ratio), Title: title}
}

func sign(f *shadow.Finding) string {
	switch {
	case f.Between != nil:
		return "≠"
	case f.NonFinite > 0:
		return "N"
	}
	return "✗"
}

func band(n ctconv.Number) string {
	for _, b := range bands {
		if float64(n) <= b.upTo {
			return b.Class
		}
	}
	return "bad" // NaN is in no band
}

// percent places v between low and high on a logarithmic axis, 0 to 100.
func percent(v, low, high float64) float64 {
	return 100 * (math.Log10(v) - math.Log10(low)) / (math.Log10(high) - math.Log10(low))
}
