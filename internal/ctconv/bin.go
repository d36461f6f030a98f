package ctconv

import "bytes"

// The layout of model.bin, little-endian, without padding, alignment or checksum:
//
//	file   := version:u32 name:string revision:u32 count:u32 record[count] [count:u32 alias[count]]
//	record := name:string rank:u8 dim:u32[rank] type:u8 nbytes:u32 payload              (version >= 4)
//	record := name:string rank:u8 dim:u32[rank] item_size:u8 nitems:u32 payload         (version 2, 3)
//	alias  := name:string target:string                                                 (version >= 3)
//	string := n:u16 bytes[n-1] 0x00
//
// Source: CTranslate2, python/ctranslate2/specs/model_spec.py (writer), src/models/model.cc (reader).
const (
	minVersion  = 2
	maxVersion  = 6
	maxRevision = 8
	specName    = "TransformerDecoderSpec"

	maxRank   = 8                     // no converter writes more than 3; a larger rank is a torn file
	maxCount  = 1 << 16               // of variables, of aliases: two thousand layers, and an index of some 20 MB
	minString = 2 + 1 + 1             // length, one character, NUL
	minRecord = minString + 1 + 1 + 4 // name, rank 0, type, size
	minAlias  = 2 * minString
)

var lfsPointer = []byte("version https://git-lfs.github.com/spec/")

// Parse reads the bytes of a model.bin; file is its name in errors. The tensors lie in bin, which must stay
// unchanged while the model is used. The whole of bin is checked; nothing is allocated but the index of its tensors.
// The model has no Vocabulary yet, and of its Config only the special tokens that files before version 6 hold.
func Parse(file string, bin []byte) (*Model, error) {
	c := &cursor{file: file, bin: bin}
	if bytes.HasPrefix(bin, lfsPointer) {
		return nil, &Error{File: file, Offset: 0, Defect: "want a converted model, file is a Git LFS pointer to one",
			Advice: "git lfs pull"}
	}
	m := &Model{bin: bin, file: file, Tensors: map[string]Tensor{}}
	m.header(c)
	m.records(c)
	if m.Version >= 3 {
		m.aliases(c)
	}
	if c.err == nil && c.off != len(bin) {
		c.fail("want the end of the file, %d more bytes follow", len(bin)-c.off)
	}
	if c.err != nil {
		return nil, c.err
	}
	m.rootVariables()
	return m, nil
}

func (m *Model) header(c *cursor) {
	v := c.u32("the binary version")
	if c.err == nil && (v < minVersion || v > maxVersion) {
		c.off = 0
		c.fail("want binary version %d to %d, file has %d", minVersion, maxVersion, v)
	}
	m.Version = int(v)
	start := c.off
	m.Spec = c.str("the model's kind")
	if c.err == nil && m.Spec != specName {
		c.off = start
		c.fail("want a decoder-only model (%s), file holds a %s", specName, m.Spec)
	}
	start = c.off
	r := c.u32("the revision")
	if c.err == nil && (r < 1 || r > maxRevision) {
		c.off = start
		c.fail("want revision 1 to %d of %s, file has %d", maxRevision, specName, r)
	}
	m.Revision = int(r)
}

func (m *Model) records(c *cursor) {
	for range c.count("variables", minRecord) {
		t := m.record(c)
		if c.err != nil {
			return
		}
		m.Tensors[t.Name] = t
	}
}

func (m *Model) record(c *cursor) Tensor {
	start := c.off
	t := Tensor{Name: c.str("a variable's name")}
	c.variable = t.Name
	defer func() { c.variable = "" }()
	if prior, ok := m.Tensors[t.Name]; ok && c.err == nil {
		c.off = start
		c.fail("want one variable of this name, the other's data is at byte %d", prior.Offset)
	}
	t.Shape = c.shape()
	elements := c.elements(t.Shape)
	t.DType = c.dtype(m.Version)
	if c.err != nil {
		return t
	}
	size := uint64(t.DType.Size())
	start = c.off
	stored := uint64(c.u32("the size of the data"))
	if m.Version <= 3 {
		stored *= size
	}
	if c.err == nil && stored != elements*size {
		c.off = start
		c.fail("want %d bytes of data for %s %v, the record says %d", elements*size, t.DType, t.Shape, stored)
	}
	t.Offset = int64(c.off)
	t.Data = c.take(stored, "data")
	return t
}

func (m *Model) aliases(c *cursor) {
	for range c.count("aliases", minAlias) {
		start := c.off
		name, target := c.str("an alias"), c.str("an alias's target")
		if c.err != nil {
			return
		}
		c.variable = name
		_, taken := m.Tensors[name]
		_, known := m.Tensors[target]
		switch {
		case taken:
			c.off = start
			c.fail("want one variable of this name, the file aliases it to %s too", target)
			return
		case !known:
			c.off = start
			c.fail("alias of %s, which the file does not hold", target)
			return
		}
		c.variable = ""
		m.alias(name, target)
		// CTranslate2 lets the companions of a quantized weight follow it (src/models/model.cc, load).
		for _, suffix := range []string{"_scale", "_zero"} {
			m.alias(name+suffix, target+suffix)
		}
	}
}

// alias makes name a second name of target, if there is such a variable and name is free.
func (m *Model) alias(name, target string) {
	t, known := m.Tensors[target]
	if _, taken := m.Tensors[name]; taken || !known {
		return
	}
	if t.AliasOf == "" {
		t.AliasOf = target
	}
	t.Name = name
	m.Tensors[name] = t
}

// rootVariables takes what old files keep outside of decoder/: revision 1 the block's options (CTranslate2,
// src/models/transformer.cc), binary versions before 6 the special tokens (src/models/language_model.cc).
func (m *Model) rootVariables() {
	if m.Revision == 1 {
		for _, name := range []string{"num_heads", "pre_norm", "activation"} {
			m.alias("decoder/"+name, name)
		}
	}
	if m.Version >= 6 {
		return
	}
	for _, s := range []struct {
		token        *string
		name, absent string
	}{
		{&m.Config.UnkToken, "unk_token", "<unk>"},
		{&m.Config.BOSToken, "bos_token", "<s>"},
		{&m.Config.EOSToken, "eos_token", "</s>"},
	} {
		*s.token = s.absent
		if t, ok := m.Tensors[s.name]; ok {
			*s.token = string(t.Data) // int8 array of UTF-8 bytes
		}
	}
}
