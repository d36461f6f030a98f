//go:build unix && !linux

package mapped

func (f *File) drop(span) {}
