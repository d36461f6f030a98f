package engine

// Preparer is a backend that can make a pass ready before it is to begin: while the device works on the one before, and before
// anybody knows the token.
type Preparer interface {
	Backend
	// Prepare begins all that was run so far, and meanwhile makes ops ready as Run would, but begins none of them: what their buffers
	// hold is read when they begin. Host and Sync do not wait for them. The ticket is for Start or Discard; 0: the ops can only be run.
	Prepare(ops []Op) (ticket int)
	// Start begins what was prepared, after all that was run before, as if the ops were run now. False: it is not there any more,
	// and the ops must be run.
	Start(ticket int) bool
	// Discard drops what was prepared.
	Discard(ticket int)
}

// Foreseer is a backend that gains from knowing which ops come: it may read their weights before they run.
type Foreseer interface {
	Backend
	// Foresee says that ops are going to be run, in this order. After Foresee(nil) no memory is read any more, but by ops that run.
	Foresee(ops []Op)
}
