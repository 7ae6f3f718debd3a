package inject

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// records holds what the Pod records about earlier injections, and what is needed to write
// the records anew.
type records struct {
	now    time.Time
	known  func(string) bool
	hashes podstate.Hashes
	listed []string
	owners map[string][]string // see recordedOwners; nil until it is needed

	calledAgain bool
	computed    map[string]json.RawMessage // what policies have computed in this call, by container
}

// recent is how old a record may be to count as written during this very admission, which
// takes seconds. Another replica may have written it for a SidecarSet that this replica
// does not know yet, so it is kept.
const recent = time.Minute

// readRecords finds out which targets the Pod carries already.
func (c *computation) readRecords() {
	if c.pod.Annotations == nil {
		return
	}
	c.hashes = podstate.ParseHashes(c.pod.Annotations[appsv1beta1.AnnotationHash])
	c.listed = podstate.ParseInjectedList(c.pod.Annotations[appsv1beta1.AnnotationInjectedList])
	for i := range c.targets {
		t := &c.targets[i]
		has := c.hashes.Has(t.Name())
		same := has && c.hashes.Hash(t.Name()) == t.Hash
		t.otherHash = has && !same
		if t.enforced {
			continue
		}
		t.sameHash = same
		if t.skip != "" || t.problem != nil || !same {
			continue
		}
		carried := t.carriedBy(c.pod)
		if !carried || t.copies {
			t.fresh = c.now.Sub(c.hashes.UpdatedAt(t.Name())).Abs() < recent
			carried = t.carriedBy(c.pod)
		}
		if carried {
			t.skip = SkipInjected
		}
	}
}

func (t *target) carriedBy(pod *PodView) bool {
	return t.carriedIn(pod.InitContainers, t.initContainers) && t.carriedIn(pod.Containers, t.containers)
}

// carriedIn reports whether a list of the Pod has all these sidecars, with the expected
// images, unless another webhook can have changed them. Bodies are not compared: the API
// server completes them after each webhook.
func (t *target) carriedIn(containers []ContainerView, sidecars []sidecar) bool {
	for i := range sidecars {
		s := &sidecars[i]
		at := indexOf(containers, s.name)
		if at < 0 || !containers[at].Injected {
			return false
		}
		if image := containers[at].Image; image != s.image && !t.fresh {
			other := indexOf(containers, s.sibling) // swapped by a hot upgrade
			if s.sibling == "" || image != s.siblingImage || other < 0 || containers[other].Image != s.image {
				return false
			}
		}
	}
	return true
}

// isComplete reports whether nothing is left to do: every target is skipped, and those that
// the Pod carries are listed and take nothing more from it.
func (c *computation) isComplete() bool {
	for i := range c.targets {
		switch t := &c.targets[i]; t.skip {
		case "":
			return false
		case SkipInjected:
			if _, listed := slices.BinarySearch(c.listed, t.Name()); !listed || t.grows() {
				return false
			}
		}
	}
	return true
}

// writeRecords records what is injected now next to what was before. Without
// an injection there is nothing to record, except a name that is missing from
// the list although the Pod carries the SidecarSet, and what chance decided:
// the next call must not inject the other revision.
func (c *computation) writeRecords(injects bool) {
	names := slices.DeleteFunc(c.listed, func(name string) bool { return !c.keeps(name) })
	for i := range c.targets {
		if t := &c.targets[i]; t.skip == SkipInjected || (injects && t.skip == "") {
			names = append(names, t.Name())
		}
	}
	if len(names) > 0 {
		c.annotate(appsv1beta1.AnnotationInjectedList, podstate.JoinInjectedList(names))
	}
	c.recordChoices()
	if !injects {
		return
	}
	withImage := make([]podstate.HashRecord, 0, len(c.targets))
	withoutImage := make([]podstate.HashRecord, 0, len(c.targets))
	for t := range c.injecting() {
		record := podstate.HashRecord{
			UpdateTimestamp: c.stamp(t), Hash: t.Hash, SidecarSetName: t.Name(), SidecarList: t.SidecarList,
			ControllerRevision: t.recordedAs,
		}
		withImage = append(withImage, record)
		record.Hash, record.ControllerRevision = t.HashWithoutImage, ""
		withoutImage = append(withoutImage, record)
	}
	others := podstate.ParseHashes(c.pod.Annotations[appsv1beta1.AnnotationHashWithoutImage])
	c.recordHotUpgrades()
	c.forgetUpdates()
	c.annotate(appsv1beta1.AnnotationHash, c.hashes.Keep(c.keeps).With(withImage...).String())
	c.annotate(appsv1beta1.AnnotationHashWithoutImage, others.Keep(c.keeps).With(withoutImage...).String())
}

// recordHotUpgrades records for each pair which container works and which is newer. Records
// of other sidecars stay, unless their pair was taken out.
func (c *computation) recordHotUpgrades() {
	working := podstate.ParseTexts(c.pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	recorded := len(working)
	for i := range c.plan.Removals {
		maps.DeleteFunc(working, func(_, container string) bool { return container == c.plan.Removals[i].Name })
	}
	changed := len(working) < recorded
	for t := range c.injecting() {
		for _, name := range t.hotUpgrade {
			if working == nil {
				working = map[string]string{}
			}
			changed = true
			first, second := appsv1beta1.HotUpgradeNames(name)
			working[name] = first
			c.annotate(appsv1beta1.AnnotationVersionPrefix+first, "1")
			c.annotate(appsv1beta1.AnnotationVersionAltPrefix+first, "0")
			c.annotate(appsv1beta1.AnnotationVersionPrefix+second, "0")
			c.annotate(appsv1beta1.AnnotationVersionAltPrefix+second, "1")
		}
	}
	if changed {
		c.annotate(appsv1beta1.AnnotationWorkingHotUpgradeContainer, podstate.FormatTexts(working))
	}
}

// keeps reports whether another SidecarSet's record stays: it exists, or the
// record is so new that it must come from this admission.
func (c *computation) keeps(name string) bool {
	if c.known == nil || c.known(name) {
		return true
	}
	return c.hashes.UpdatedAt(name).After(c.now.Add(-recent))
}

// annotate plans an annotation of the Pod, unless the Pod has it with this value.
func (c *computation) annotate(key, value string) {
	if has, present := c.pod.Annotations[key]; present && has == value {
		delete(c.plan.Annotations, key)
		return
	}
	if c.plan.Annotations == nil {
		c.plan.Annotations = make(map[string]string, 4)
	}
	c.plan.Annotations[key] = value
}

// annotation is a value of the Pod as planned so far.
func (c *computation) annotation(key string) (string, bool) {
	if value, planned := c.plan.Annotations[key]; planned {
		return value, true
	}
	value, present := c.pod.Annotations[key]
	return value, present
}
