package engine

import "fmt"

// OpError is the failure of an op. A backend's Sync returns one, or wraps one, where it can name the op.
type OpError struct {
	Site   Site
	Kernel string // the backend's name for what ran: "metal kernel add_f32"; "": it has none
	Among  int    // above 1: the backend cannot tell which of so many ops failed, of which this is the first
	Err    error
}

func (e *OpError) Error() string {
	if e.Kernel == "" {
		return fmt.Sprintf("%v: %v", e.Site, e.Err)
	}
	return fmt.Sprintf("%v: %s: %v", e.Site, e.Kernel, e.Err)
}

func (e *OpError) Unwrap() error { return e.Err }
