// Package podsecurity says in which Namespaces Pod Security refuses Pods because of the sidecars
// that a SidecarSet brings. It knows the labels of Namespaces and the revisions of SidecarSets. It
// knows neither the Pods, nor the defaults and exemptions in the configuration of API servers.
package podsecurity

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/text"
)

// Namespaces are the Namespaces that enforce the level baseline or restricted. They never change.
type Namespaces struct {
	list   []namespace // in name order
	levels []api.LevelVersion
}

// namespace is one Namespace. Its level is an index of Namespaces.levels.
type namespace struct {
	name   string
	labels labels.Set
	level  int
}

// Read returns the Namespaces of a snapshot without the excluded ones, whose Pods are never
// injected.
func Read(snapshot *match.Snapshot, excluded []string) *Namespaces {
	all := &Namespaces{}
	index := map[api.LevelVersion]int{}
	for name := range snapshot.NamespacesWith(labelled) {
		set, _ := snapshot.NamespaceLabels(name)
		level := enforced(set)
		if level.Level == api.LevelPrivileged || slices.Contains(excluded, name) {
			continue
		}
		if _, known := index[level]; !known {
			index[level] = len(all.levels)
			all.levels = append(all.levels, level)
		}
		all.list = append(all.list, namespace{name, set, index[level]})
	}
	slices.SortFunc(all.list, func(a, b namespace) int { return strings.Compare(a.name, b.name) })
	return all
}

var labelled = func() labels.Selector {
	requirement, err := labels.NewRequirement(api.EnforceLevelLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // at start: the key is a constant
	}
	return labels.NewSelector().Add(*requirement)
}()

// enforced returns the level that a Namespace with these labels enforces. API servers, too, take
// a value that they cannot read as the strictest one.
func enforced(set labels.Set) api.LevelVersion {
	level, _ := api.ParseLevel(set[api.EnforceLevelLabel])
	version := newest
	if text, ok := set[api.EnforceVersionLabel]; ok {
		if asked, err := api.ParseVersion(text); err == nil && asked.Older(newest) {
			version = asked
		}
	}
	return api.LevelVersion{Level: level, Version: version}
}

// newest is the version of the newest rules. Later versions, of which there is no end, are the
// same as this one.
var newest = func() (newest api.Version) {
	for _, check := range policy.DefaultChecks() {
		if last := check.Versions[len(check.Versions)-1].MinimumVersion; newest.Older(last) {
			newest = last
		}
	}
	return newest
}()

var evaluator = func() policy.Evaluator {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic(err) // at start: the checks are constant
	}
	return evaluator
}()

// None reports whether there are none.
func (n *Namespaces) None() bool { return len(n.list) == 0 }

// Same reports whether others has the same Namespaces, with the same labels.
func (n *Namespaces) Same(others *Namespaces) bool {
	return slices.EqualFunc(n.list, others.list, func(a, b namespace) bool {
		return a.name == b.name && labels.Equals(a.labels, b.labels)
	})
}

// Refusals says where API servers refuse Pods because of the sidecars of a compiled SidecarSet, and why. The
// Namespaces are the ones that the argument of selects; of is the compiled SidecarSet itself, or the one of the SidecarSet
// that injects it as a recorded revision. The result has one Refusal for each level and reason,
// in the order of their first Namespaces. The sidecars are judged once for each level and version.
func (n *Namespaces) Refusals(compiled, of *inject.Compiled) []*Refusal {
	var pod *sample
	var all []*Refusal
	judged := map[int]*Refusal{} // by level; nil if the level refuses nothing
	for i := range n.list {
		ns := &n.list[i]
		r, known := judged[ns.level]
		if known && r == nil || !of.NamespaceSelector.Matches(ns.labels) {
			continue
		}
		if !known {
			if pod == nil {
				pod = newSample(compiled)
			}
			r = pod.judge(n.levels[ns.level])
			same := slices.IndexFunc(all, func(other *Refusal) bool { return r != nil && other.level == r.level && other.why == r.why })
			switch {
			case same >= 0:
				r = all[same]
			case r != nil:
				all = append(all, r)
			}
			judged[ns.level] = r
		}
		if r != nil {
			r.add(ns.name)
		}
	}
	return all
}

// sample is a Pod that has nothing but the sidecars, their volumes and their annotations.
type sample struct {
	metadata metav1.ObjectMeta
	spec     corev1.PodSpec
}

func newSample(compiled *inject.Compiled) *sample {
	s := &sample{}
	s.metadata.Annotations = map[string]string{}
	for _, patch := range compiled.Set.Spec.PatchPodMetadata {
		maps.Copy(s.metadata.Annotations, patch.Annotations)
	}
	fixed := compiled.Fixed()
	s.spec.InitContainers, s.spec.Containers = containers(fixed.InitContainers), containers(fixed.Containers)
	for _, part := range fixed.Volumes {
		s.spec.Volumes = append(s.spec.Volumes, decoded[corev1.Volume](part))
	}
	return s
}

// containers decodes containers under their names in the SidecarSet.
func containers(parts []inject.FixedPart) []corev1.Container {
	list := make([]corev1.Container, len(parts))
	for i, part := range parts {
		list[i] = decoded[corev1.Container](part)
		list[i].Name = part.Name
	}
	return list
}

// decoded ignores the error: the compiler of the compiled SidecarSet has decoded the same members.
func decoded[T any](part inject.FixedPart) (value T) {
	_ = utiljson.Unmarshal(part.Body, &value)
	return value
}

// judge says what a level refuses; nil if nothing. A Pod may set for all its containers what the
// sidecars do not set, or have its own user namespace. So each rule is asked about three Pods.
func (s *sample) judge(level api.LevelVersion) *Refusal {
	bare, helpful := s.spec, s.spec
	helpful.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	mapped := helpful
	mapped.HostUsers = new(false)
	of := func(spec *corev1.PodSpec) []policy.CheckResult {
		return evaluator.EvaluatePod(level, &s.metadata, spec)
	}
	ofHelpful, ofMapped := of(&helpful), of(&mapped)
	r := &Refusal{level: level.Level}
	var why []string
	for i, result := range of(&bare) {
		if result.Allowed {
			continue
		}
		text := describe(result)
		switch {
		case ofHelpful[i].Allowed: // the text says that the Pod may set it as well
		case ofMapped[i].Allowed:
			text += " (unless the Pod sets hostUsers=false)"
		default:
			r.every = true
		}
		why = append(why, text)
	}
	if len(why) == 0 {
		return nil
	}
	r.why = text.Cut(strings.Join(why, "; "), longest)
	return r
}

// describe says what a Pod has to change, in the words of Pod Security.
func describe(result policy.CheckResult) string {
	if strings.Contains(result.ForbiddenDetail, " must ") {
		return result.ForbiddenDetail
	}
	return result.ForbiddenReason + " (" + result.ForbiddenDetail + ")"
}
