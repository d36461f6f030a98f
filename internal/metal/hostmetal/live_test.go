package hostmetal

import (
	"strings"
	"testing"
)

// TestLive: what the language version leaves out is no kernel, and lines keep their numbers.
func TestLive(t *testing.T) {
	const text = `// live.metal
#include <metal_stdlib>
#if 1
template <typename T> kernel void f(device T *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = T(1.0f); }
#endif
template [[host_name("f_f32")]] [[kernel]] decltype(f<float>) f<float>;
#if __METAL_VERSION__ >= 310
template [[host_name("f_bf16")]] [[kernel]] decltype(f<bfloat>) f<bfloat>;
#ifdef MORE
#endif
template [[host_name("f_bf16_again")]] [[kernel]] decltype(f<bfloat>) f<bfloat>;
#endif
kernel void g(device float *x [[buffer(0)]]) { x[0] = 1.0f; }
`
	for version, want := range map[int]string{300: "f_f32 g", 310: "f_f32 f_bf16 f_bf16_again g"} {
		s, err := parse(live(text, version))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range s.exports {
			names = append(names, e.hostName)
			if e.hostName == "g" && e.line != 13 {
				t.Errorf("%d: g is in line %d", version, e.line)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%d: kernels %s, want %s", version, got, want)
		}
	}
}
