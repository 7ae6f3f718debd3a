package inject

import (
	"maps"
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// record records what is injected now next to what was before. Without
// an injection there is nothing to record, except a name that is missing from
// the list although the Pod has the SidecarSet, and what chance decided:
// the next call must not inject the other revision.
func record(s *selected, p *placement) {
	names := slices.DeleteFunc(slices.Clone(s.listed), func(name string) bool { return !s.keeps(name) })
	for i := range s.targets {
		if t := &s.targets[i]; t.skip == SkipInjected || (p.injects && t.skip == "") {
			names = append(names, t.Name())
		}
	}
	if len(names) > 0 {
		p.annotations.Set(appsv1beta1.AnnotationInjectedList, podstate.JoinInjectedList(names))
	}
	s.recordChoices(&p.annotations)
	if !p.injects {
		return
	}
	withImage := make([]podstate.HashRecord, 0, len(s.targets))
	withoutImage := make([]podstate.HashRecord, 0, len(s.targets))
	for t := range s.injecting() {
		record := podstate.HashRecord{
			UpdateTimestamp: s.stamp(t), Hash: t.Hash, SidecarSetName: t.Name(), SidecarList: t.SidecarList,
			ControllerRevision: t.recordedAs,
		}
		withImage = append(withImage, record)
		record.Hash, record.ControllerRevision = t.HashWithoutImage, ""
		withoutImage = append(withoutImage, record)
	}
	others := podstate.ParseHashes(s.pod.Annotations[appsv1beta1.AnnotationHashWithoutImage])
	s.recordHotUpgrades(&p.annotations)
	s.forgetUpdates(&p.annotations)
	p.annotations.Set(appsv1beta1.AnnotationHash, s.hashes.Keep(s.keeps).With(withImage...).String())
	p.annotations.Set(appsv1beta1.AnnotationHashWithoutImage, others.Keep(s.keeps).With(withoutImage...).String())
}

// recordHotUpgrades records for each pair which container works and which is newer. Records
// of other sidecars stay, unless their pair was taken out.
func (s *selected) recordHotUpgrades(to *podstate.AnnotationEdits) {
	working := podstate.ParseTexts(s.pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	recorded := len(working)
	for i := range s.removals {
		maps.DeleteFunc(working, func(_, container string) bool { return container == s.removals[i].Name })
	}
	changed := len(working) < recorded
	for t := range s.injecting() {
		for _, name := range t.hotUpgrade {
			if working == nil {
				working = map[string]string{}
			}
			changed = true
			first, second := appsv1beta1.HotUpgradeNames(name)
			working[name] = first
			to.Set(appsv1beta1.AnnotationVersionPrefix+first, "1")
			to.Set(appsv1beta1.AnnotationVersionAltPrefix+first, "0")
			to.Set(appsv1beta1.AnnotationVersionPrefix+second, "0")
			to.Set(appsv1beta1.AnnotationVersionAltPrefix+second, "1")
		}
	}
	if changed {
		to.Set(appsv1beta1.AnnotationWorkingHotUpgradeContainer, podstate.FormatTexts(working))
	}
}

// stamp is when the Pod was given the revision. An enforced SidecarSet is recorded at each
// of the calls of one admission, and keeps the time of the first, so that the calls that
// follow change nothing. Nothing else of that record is taken over.
func (s *selected) stamp(t *target) time.Time {
	if t.enforced {
		if at := s.hashes.UpdatedAt(t.Name()); at.After(s.now.Add(-recent)) && !at.After(s.now) {
			return at
		}
	}
	return s.now
}

// forgetUpdates drops what the Pod says about in-place updates of enforced
// SidecarSets. A Pod that is being created has had none.
func (s *selected) forgetUpdates(to *podstate.AnnotationEdits) {
	state, present := s.pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState]
	if !present || !slices.ContainsFunc(s.targets, target.isEnforced) {
		return
	}
	to.Set(appsv1beta1.AnnotationInPlaceUpdateState, podstate.ForgetUpdates(state, func(name string) bool {
		return slices.ContainsFunc(s.targets, func(t target) bool { return t.isEnforced() && t.Name() == name })
	}))
}

// recordChoices records what chance decided for the SidecarSets that are
// injected now. It drops the choice of an enforced SidecarSet for which chance
// decides nothing.
func (s *selected) recordChoices(to *podstate.AnnotationEdits) {
	var choices map[string]string
	for i := range s.targets {
		t := &s.targets[i]
		forget := t.enforced && t.choice == "" && s.pod.Annotations[appsv1beta1.AnnotationRevisionChoice] != ""
		if t.skip != "" || t.choice == "" && !forget {
			continue
		}
		if choices == nil {
			choices = make(map[string]string)
			for name, choice := range podstate.ParseTexts(s.pod.Annotations[appsv1beta1.AnnotationRevisionChoice]) {
				if s.keeps(name) {
					choices[name] = choice
				}
			}
		}
		if choices[t.Name()] = t.choice; forget {
			delete(choices, t.Name())
		}
	}
	if choices != nil {
		to.Set(appsv1beta1.AnnotationRevisionChoice, podstate.FormatTexts(choices))
	}
}
