package metal

import (
	"fmt"
	"os"
	"time"
)

// CommandError is the failure of a command buffer, as Metal tells it.
type CommandError struct {
	Code int    // MTLCommandBufferError
	Text string // Metal's
}

const commandErrorDomain = "MTLCommandBufferErrorDomain"

// commandErrors are the codes of MTLCommandBufferError: their name, and what would help.
var commandErrors = map[int]struct{ name, hint string }{
	1:  {"internal", ""},
	2:  {"timeout", "the system stops what keeps the GPU busy for seconds: let it do less besides, or take a smaller model"},
	3:  {"page fault", "a kernel left its buffers: MTL_SHADER_VALIDATION=1 shows where"},
	4:  {"access revoked", "the system refuses this process the GPU after too many failures: start llmrun again"},
	7:  {"not permitted", "the system lets no process in the background use the GPU"},
	8:  {"out of memory", "close other programs, or take a smaller model or compute type"},
	9:  {"invalid resource", ""},
	10: {"memoryless", ""},
	11: {"device removed", "the GPU is gone: plug it in, or start llmrun again"},
	12: {"stack overflow", ""},
}

func (e *CommandError) Error() string {
	if known, ok := commandErrors[e.Code]; ok {
		return fmt.Sprintf("%s %d (%s): %s", commandErrorDomain, e.Code, known.name, e.Text)
	}
	return fmt.Sprintf("%s %d: %s", commandErrorDomain, e.Code, e.Text)
}

// Hint is what would help, or empty.
func (e *CommandError) Hint() string { return commandErrors[e.Code].hint }

// TimeoutError says that a command buffer did not end. The backend is lost with it, and so is its memory: the GPU may still write there.
type TimeoutError struct{ After time.Duration }

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("the GPU has not finished after %v", e.After)
}

// Hint names the setting.
func (e *TimeoutError) Hint() string { return timeoutVariable + "=10m waits longer" }

const timeoutVariable = "LLMRUN_METAL_TIMEOUT"

// timeout is how long a command buffer may take: $LLMRUN_METAL_TIMEOUT, or many times what maxWork allows. The host device shares the CPU with
// others, and may be checking each access.
func timeout(host bool) (time.Duration, error) {
	if v := os.Getenv(timeoutVariable); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return 0, fmt.Errorf("%s: want a duration above 0 such as 90s, got %q", timeoutVariable, v)
		}
		return d, nil
	}
	if host {
		return 10 * time.Minute, nil
	}
	return time.Minute, nil
}
