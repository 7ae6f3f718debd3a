package inject

// Compute derives the Plan for one Pod. Equal inputs give equal plans, whatever
// the order of the candidates, and a Pod that already has the result yields
// an empty plan. With an error, the plan has Skipped only. The error is that of Input.Ended, or it
// is, or joins, *ConflictError, *InvalidError, *RevisionError, *MetadataError, *ResourcesError,
// *FitError and *SizeError: each of these says what the users have to change.
//
// What an earlier call of the same admission injected stays as it is; a later call adds what is
// missing.
func Compute(in Input) (Plan, error) {
	// 1. Select: which SidecarSets, which revision of each, and what the Pod has of them already.
	s := choose(&in)
	if s.isComplete() {
		return Plan{Skipped: s.skipped(nil)}, nil
	}
	plan, err := compute(&s)
	if err != nil {
		return Plan{Skipped: s.skipped(nil)}, err
	}
	return plan, nil
}

// compute plans for the SidecarSets that are selected.
func compute(s *selected) (Plan, error) {
	var notes notes
	if err := s.check(); err != nil {
		return Plan{}, err
	}
	// 2. Place: where each container, volume and pull secret goes, and the annotations that users ask for.
	p, err := place(s, &notes)
	if err != nil {
		return Plan{}, err
	}
	// 3. Render: the elements as this Pod needs them, if they fit it.
	edits, err := render(s, &p, &notes)
	if err != nil {
		return Plan{}, err
	}
	if err := fit(s, &p, &edits); err != nil {
		return Plan{}, err
	}
	// 4. Record: the annotations that say what the Pod was given.
	record(s, &p)
	notePorts(s, &edits, &notes)
	return Plan{
		Removals: s.removals, Replacements: edits.replacements, Additions: edits.additions, Insertions: edits.insertions,
		Annotations: p.annotations.Planned, Injected: s.injected(&edits), Skipped: s.skipped(&edits), Replaces: s.replaced(&edits),
		HeldBack: s.heldBack(),
		Warnings: notes.list(s.targets), podHas: s.submitted,
	}, nil
}
