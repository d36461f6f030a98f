package hostmetal

import (
	"fmt"
	"strings"
)

// cxx returns the translation unit: the prelude, the Metal text under its own file name and lines,
// and the table of kernels that msl_lib hands to the runtime.
func (s *source) cxx(d dialect) string {
	var b, table strings.Builder
	fmt.Fprintf(&b, "#include <metal_stdlib>\n#line 1 %q\n%s\n#line 1 \"<kernels>\"\n", s.file, s.text)
	b.WriteString("#undef device\n#undef constant\n#undef threadgroup\n#undef thread\n#undef kernel\n")
	for i, e := range s.exports {
		k := s.find(e.kernel)
		fmt.Fprintf(&b, "#line %d %q\ntypedef msl::Kernel<decltype(::%s), &::%s", e.line, s.file, e.expr, e.expr)
		for _, p := range k.params {
			b.WriteString(", " + p.tag())
		}
		fmt.Fprintf(&b, "> msl_k%d;\nstatic const char* const msl_names%d[] = {", i, i)
		for _, p := range k.params {
			fmt.Fprintf(&b, "%q, ", p.name)
		}
		b.WriteString("0};\n")
		flags, entry, loop := "0", "0", fmt.Sprintf("&msl_k%d::loop", i)
		if k.syncs {
			flags, entry, loop = "MSL_SYNCS", fmt.Sprintf("&msl_k%d::entry", i), "0"
		}
		if k.staticTG {
			flags += " | MSL_STATIC_TG"
		}
		if d.fastMath {
			flags += " | MSL_FTZ"
		}
		if d.checked {
			flags += " | MSL_TELLS"
		}
		max := k.maxThreads
		if max == 0 {
			max = 1024
		}
		fmt.Fprintf(&table, "    {%q, %q, %d, msl_k%d::nargs, msl_k%d::args, msl_names%d, %s, %d, 0, %s, %s},\n",
			e.hostName, s.file, k.line, i, i, i, flags, max, entry, loop)
	}
	fmt.Fprintf(&b, `static MslKernel msl_table[] = {
%s    {}
};
const MslRuntime* msl::rt;
extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) MslKernel* msl_lib(const MslRuntime* rt, unsigned* n, unsigned* abi) {
    msl::rt = rt;
    *n = %d;
    *abi = MSL_ABI;
    return msl_table;
}
`, table.String(), len(s.exports))
	return b.String()
}

// tag names the type in msl_kernel.h that fetches the parameter.
func (p param) tag() string {
	switch p.attr {
	case "buffer":
		flags := "0"
		if p.space == "constant" {
			flags = "MSL_CONSTANT"
		}
		return fmt.Sprintf("msl::Buf<%d, %s>", p.index, flags)
	case "threadgroup":
		return fmt.Sprintf("msl::Threadgroup<%d>", p.index)
	}
	return "msl::" + p.attr
}
