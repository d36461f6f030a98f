package report

import (
	"fmt"
	"math"
	"strings"

	"llmrun/internal/ctconv"
	"llmrun/internal/parity"
	"llmrun/internal/shadow"
)

// siteWords say what is computed at a site to a reader who does not know our names.
var siteWords = map[string]string{
	"embed":          "the lookup of the token's embedding",
	"attn_norm":      "the norm before attention",
	"qkv":            "the projection to queries, keys and values",
	"q_norm":         "the norm of the queries",
	"k_norm":         "the norm of the keys",
	"q_rope":         "the rotation of the queries by their position",
	"k_rope":         "the rotation of the keys by their position",
	"kv_write":       "the write of keys and values to the cache",
	"scores":         "the attention scores, queries times keys",
	"softmax":        "the softmax of the attention scores",
	"context":        "the sum of values that attention weighs",
	"o_proj":         "the output projection of attention",
	"post_attn_norm": "the norm after attention",
	"attn_residual":  "the sum of attention's output and its input",
	"ffn_norm":       "the norm before the feed-forward network",
	"gate":           "the gate projection of the feed-forward network",
	"up":             "the up projection of the feed-forward network",
	"act":            "the activation of the feed-forward network",
	"down":           "the down projection of the feed-forward network",
	"post_ffn_norm":  "the norm after the feed-forward network",
	"layer_out":      "the sum that leaves the layer",
	"final_norm":     "the last norm",
	"lm_head":        "the projection to the vocabulary",
	"logits":         "the soft cap of the logits",
	"sample":         "the choice of the token from the logits",
}

func siteName(site string) string {
	if words := siteWords[site]; words != "" {
		return words
	}
	if strings.HasPrefix(site, "fused ") {
		return "the " + site + " kernel"
	}
	return site
}

// stepWords says when a step is, as engine.Site numbers them.
func stepWords(step int) string {
	if step == 0 {
		return "while the prompt was read"
	}
	return fmt.Sprintf("when the %s new token was computed", ordinal(step))
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprint(n) + suffix
}

// layerWords places a layer among those that the cells know.
func layerWords(layer int, cells []shadow.Cell) string {
	last := -1
	for _, c := range cells {
		last = max(last, c.Layer)
	}
	switch {
	case layer < 0:
		return ""
	case layer == last && last > 0:
		return fmt.Sprintf("in layer %d, the last one, ", layer)
	case layer == 0:
		return "in layer 0, the first one, "
	}
	return fmt.Sprintf("in layer %d, ", layer)
}

// where says in plain language where a culprit is.
func where(c *parity.Comparison) string {
	f := &c.Culprit.Finding
	if b := f.Between; b != nil {
		switch {
		case b.Reader == "nobody":
			return "after " + end(b.Writer)
		case b.Writer == "nobody":
			return "before " + end(b.Reader)
		}
		return "between " + end(b.Writer) + " and " + end(b.Reader)
	}
	var cells []shadow.Cell
	for _, s := range c.Shadow {
		cells = append(cells, s.Cells...)
	}
	return siteName(f.Site) + ", " + layerWords(f.Layer, cells) + stepWords(f.Step)
}

// end names a writer or reader: a site, as engine.Site writes it, or another word.
func end(s string) string {
	if words := siteWords[s[strings.LastIndexByte(s, ' ')+1:]]; words != "" {
		return fmt.Sprintf("%s (%s)", words, s)
	}
	return s
}

// changed says what is wrong with the bytes of a finding between two ops.
func changed(f *shadow.Finding) string {
	b := f.Between
	s := fmt.Sprintf("%d of %d elements of %s", f.Bad, f.Elements, f.Operand)
	if b.Reader != "nobody" {
		s += " that " + b.Reader + " read"
	}
	switch b.Writer {
	case "nobody":
		return s + " were not written in this text"
	case "the file":
		return s + " are not what the file holds"
	case "the prompt":
		return s + " are not what the prompt says"
	}
	return s + " are not what " + b.Writer + " wrote"
}

// names are what the sides are called; two backends of one name are told apart by their roles.
func names(c *parity.Comparison) (reference, candidate string) {
	if c.Reference.Backend == c.Candidate.Backend {
		return "reference", "candidate"
	}
	return c.Reference.Backend, c.Candidate.Backend
}

// side names a side by its role and its backend.
func side(c *parity.Comparison, role string) string {
	b := c.Candidate
	if role == "reference" {
		b = c.Reference
	}
	return fmt.Sprintf("%s (%s)", role, b.Backend)
}

// sentence is the verdict in words, for someone who has seen no verdict before.
func sentence(c *parity.Comparison) string {
	reference, candidate := side(c, "reference"), side(c, "candidate")
	switch {
	case c.Verdict == parity.Match:
		return fmt.Sprintf("The %s computes what the %s computes: their tokens and logits differ by no more than rounding explains.", candidate, reference)
	case c.Verdict == parity.Inconclusive && c.Interrupted:
		return "The run was interrupted before it could tell."
	case c.Verdict == parity.Inconclusive:
		return fmt.Sprintf("This run cannot tell whether the %s is right.", candidate)
	case c.Culprit == nil:
		return fmt.Sprintf("The %s says something else than the %s, and rounding does not explain it.", candidate, reference)
	case c.Culprit.Between != nil:
		return fmt.Sprintf("The %s changes or loses data %s.", side(c, c.Culprit.Side), where(c))
	}
	return fmt.Sprintf("The %s goes wrong first in %s.", side(c, c.Culprit.Side), where(c))
}

// because is the reason of the verdict, or the numbers of a match.
func because(c *parity.Comparison) string {
	if c.Verdict == parity.Match {
		return strings.Join((&text{Comparison: c}).matchNumbers(), "; ")
	}
	if c.Culprit == nil && c.Why != "" {
		return c.Reason + ": " + c.Why
	}
	return c.Reason
}

// gateWords say what each gate asks, and what to try where it does not hold.
var gateWords = map[string]struct{ asks, next string }{
	"BOS": {"Every prompt begins with the token that the model expects. Without it, both sides may babble the same.",
		"Begin the prompts with the model's own token: --bos on."},
	"output varied":      {"The text was not one token over and over. Such texts agree too easily.", "Try other prompts: -p TEXT or --prompts FILE."},
	"reference finite":   {"The reference itself has neither NaN nor infinity.", "Look for what is wrong on the reference's side first: llmrun convert-inspect."},
	"something compared": {"At least one step of a prompt was compared.", ""},
	"margins above noise": {"The reference chose its tokens clearly, not by a hair.",
		"Try other prompts, or a compute type that rounds less: --compute-type float32."},
	"logits within rounding": {"Where the tokens agree, so do the logits, up to rounding.",
		"Have every op of every step judged: --shadow all."},
}

// number says NaN and infinity in words.
func number(n ctconv.Number) string { return digits(n, 6) }

func short(n ctconv.Number) string { return digits(n, 3) }

func digits(n ctconv.Number, most int) string {
	switch v := float64(n); {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Inf"
	case math.IsInf(v, -1):
		return "−Inf"
	default:
		return strings.ReplaceAll(fmt.Sprintf("%.*g", most, v), "-", "−")
	}
}

// ratio is an error over what is allowed.
func ratio(n ctconv.Number) string {
	switch v := float64(n); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "beyond any bound"
	case v >= 100 && v < 1e6:
		return fmt.Sprintf("%.0f × the bound", v)
	default:
		return fmt.Sprintf("%.2g × the bound", v)
	}
}
