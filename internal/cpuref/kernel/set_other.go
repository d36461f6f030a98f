//go:build !amd64

package kernel

func machine() []*Set { return nil }
