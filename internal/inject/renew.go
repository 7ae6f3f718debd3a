package inject

import "errors"

// Renews reports whether it is certain that admission gives a new Pod with these labels the
// current revision of a SidecarSet. compiled SidecarSets are all that select the Pod. It is not certain
// if the SidecarSet is paused, replaced by a canary, or pinned to a recorded revision, even
// if chance decides about that. It is not certain either if admission would refuse the Pod,
// as far as that depends on the SidecarSets alone.
func Renews(sidecarSets []*Compiled, sidecarSet string, labels map[string]string) bool {
	pod := PodView{Labels: labels}
	in := Input{Pod: pod, Candidates: make([]Candidate, len(sidecarSets))}
	for i, compiled := range sidecarSets {
		in.Candidates[i].Current = compiled // no History: a recorded revision to inject is a problem
	}
	s := selected{pod: &pod, targets: targetsOf(&in)}
	carries := false
	for i := range s.targets {
		t := &s.targets[i]
		_, missing := errors.AsType[*RevisionError](t.problem)
		switch {
		case t.Name() == sidecarSet:
			carries = t.skip == ""
		case missing:
			t.problem = nil // of another SidecarSet, whose revision exists as far as is known
		}
	}
	return carries && s.check() == nil
}
