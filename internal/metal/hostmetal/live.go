package hostmetal

import (
	"fmt"
	"strings"
)

// live blanks the lines that #if __METAL_VERSION__ >= N leaves out at a language version (310 is 3.1), so that the pre-pass finds no kernels
// in them. All other conditions are the compiler's business.
func live(text string, version int) string {
	var b strings.Builder
	var dead []bool // of each #if that is open
	for line := range strings.Lines(text) {
		switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "#if":
			least := 0
			_, err := fmt.Sscanf(rest, "__METAL_VERSION__ >= %d", &least)
			dead = append(dead, err == nil && version < least)
		case "#ifdef", "#ifndef":
			dead = append(dead, false)
		case "#endif":
			dead = dead[:max(0, len(dead)-1)]
		default:
			for _, d := range dead {
				if d {
					line = "\n"
				}
			}
		}
		b.WriteString(line)
	}
	return b.String()
}
