package parity

import (
	"math"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/shadow"
)

// fusing is the CPU reference as if it had fused kernels; what they do wrong is after's business, which knows which are on.
type fusing struct {
	altered
	on map[string]bool
}

var (
	exactKernel     = engine.Fusion{Name: "residual", Ops: "norm+residual+norm", Exact: true}
	otherExact      = engine.Fusion{Name: "rope_kv", Ops: "q_rope+k_rope+kv_write", Exact: true}
	attentionKernel = engine.Fusion{Name: "attention", Ops: "scores+softmax+context"}
)

func newFusing(t *testing.T, after func(on map[string]bool, op engine.Op, out []float32) bool) *fusing {
	on := map[string]bool{"residual": true, "rope_kv": true, "attention": true}
	return &fusing{altered{gpu{cpu(t)}, func(op engine.Op, out []float32) []float32 {
		if after(on, op, out) {
			return out
		}
		return nil
	}}, on}
}

func (f *fusing) Fusions() []engine.Fusion {
	return []engine.Fusion{attentionKernel, exactKernel, otherExact}
}

func (f *fusing) SetFusion(name string, on bool) { f.on[name] = on }

func at(op engine.Op, layer int, site string) bool {
	return op.Site().Layer == layer && op.Site().Name == site
}

// fuseLegOf compares with the fuse leg alone, unless another is named, and looks at no op.
func fuseLegOf(t *testing.T, candidate engine.Backend) (*Comparison, Leg) {
	t.Helper()
	c, legs := tested(t, "m_gemma2", candidate, Options{Legs: []string{fuseLegName}, Shadow: ShadowOff})
	return c, legs[fuseLegName]
}

// TestFuseLegHolds: attention may round otherwise. What was on is on again.
func TestFuseLegHolds(t *testing.T) {
	b := newFusing(t, func(on map[string]bool, op engine.Op, out []float32) bool {
		if !on["attention"] || op.Site().Name != "context" {
			return false
		}
		for i := range out {
			out[i] *= 1 + 0x1p-22
		}
		return true
	})
	c, l := fuseLegOf(t, b)
	c.expect(t, Match, ExitMatch)
	if l.State != LegHolds || l.Bits || l.What != "fused ≡ one by one" {
		t.Errorf("%+v", l)
	}
	for name, on := range b.on {
		if !on {
			t.Errorf("%s is off", name)
		}
	}
}

// TestFuseLegFindsKernel: a fused kernel is named, and the first place where it shows.
func TestFuseLegFindsKernel(t *testing.T) {
	for _, test := range []struct {
		name   string
		kernel engine.Fusion
		layer  int
		after  func(on map[string]bool, op engine.Op, out []float32) bool
	}{
		{"attention is off by one in a thousand", attentionKernel, 1, func(on map[string]bool, op engine.Op, out []float32) bool {
			out[0] *= 1.001
			return on["attention"] && at(op, 1, "context")
		}},
		{"attention gives NaN", attentionKernel, 0, func(on map[string]bool, op engine.Op, out []float32) bool {
			out[0] = nan32
			return on["attention"] && at(op, 0, "context")
		}},
		{"the last bit of a sum", exactKernel, 1, func(on map[string]bool, op engine.Op, out []float32) bool {
			out[0] = math.Nextafter32(out[0], inf32)
			return on["residual"] && at(op, 1, "attn_residual")
		}},
		{"a cached value", otherExact, 0, func(on map[string]bool, op engine.Op, out []float32) bool {
			out[0] += 0.25
			return on["rope_kv"] && at(op, 0, "kv_write")
		}},
	} {
		c, l := fuseLegOf(t, newFusing(t, test.after))
		c.expect(t, Diverged, ExitDiverged)
		if l.State != LegBroken || !strings.Contains(l.Why, "fused "+test.kernel.Name) {
			t.Errorf("%s: %+v", test.name, l)
		}
		f := c.Culprit
		if f == nil || f.Side != candidateSide || f.Site != "fused "+test.kernel.Name || f.Op != test.kernel.Ops || f.Family != shadow.FamilyFused || f.Step > 1 ||
			f.Layer != test.layer || f.Bad == 0 || !f.Confirmed || !strings.Contains(f.Why[0], "--metal-fuse off") {
			t.Errorf("%s: %+v", test.name, f)
		}
	}
}

// TestFuseLegWithoutCulprit: what only kernels together do, and what attention's bound allows but the logits do not.
func TestFuseLegWithoutCulprit(t *testing.T) {
	together := newFusing(t, func(on map[string]bool, op engine.Op, out []float32) bool {
		out[0] += 0.5
		return on["residual"] && on["rope_kv"] && op.Site().Name == "lm_head"
	})
	beyond := newFusing(t, func(on map[string]bool, op engine.Op, out []float32) bool {
		out[0] += 0.5
		return on["attention"] && op.Site().Name == "lm_head"
	})
	for b, why := range map[*fusing]string{together: "together", beyond: "step 1: max|Δlogit| 0.5, allowed"} {
		c, l := fuseLegOf(t, b)
		c.expect(t, Diverged, ExitDiverged)
		if l.State != LegBroken || !strings.Contains(l.Why, why) || c.Culprit != nil {
			t.Errorf("want %q: %+v, %+v", why, l, c.Culprit)
		}
	}
}

// TestFuseLegOfOthers: a backend without fused kernels has no such leg, and none is missed.
func TestFuseLegOfOthers(t *testing.T) {
	c, legs := tested(t, "m_gemma2", gpu{cpu(t)}, Options{Legs: []string{fuseLegName}, LegsAsked: true})
	c.expect(t, Match, ExitMatch)
	if len(legs) > 0 {
		t.Errorf("%+v", legs)
	}
}
