package inject_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/test/rounds"
)

// The engine does to a Pod that it has not seen before what the specification
// says, written down once more over whole typed objects.
func TestComputeEqualsAModel(t *testing.T) {
	accepted, worlds := 0, rounds.Of(400, 50)
	for seed := range uint64(worlds) {
		w := newWorld(t, seed)
		want, wantErr := newModel(t, w).run()
		plan, err := inject.Compute(w.input(t, w.pod))
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("seed %d: Compute says %v, the model %v", seed, err, wantErr)
		}
		if err != nil {
			continue
		}
		accepted++
		got := &corev1.Pod{}
		convert(t, apply(t, plan, w.pod), got)
		if diff := gocmp.Diff(normalPod(t, want), normalPod(t, got)); diff != "" {
			t.Fatalf("seed %d (-model +engine):\n%s", seed, diff)
		}
	}
	if 3*accepted < worlds {
		t.Errorf("only %d of %d worlds are accepted", accepted, worlds)
	}
}

// normalPod decodes the annotations that are JSON, whose members have no order.
func normalPod(t *testing.T, pod *corev1.Pod) map[string]any {
	t.Helper()
	annotations := map[string]any{}
	for key, text := range pod.Annotations {
		var value any = text
		_ = json.Unmarshal([]byte(text), &value)
		annotations[key] = value
	}
	pod.Annotations = nil
	out := map[string]any{}
	convert(t, pod, &out)
	out["annotations"] = annotations
	return out
}

func convert(t *testing.T, from, into any) {
	t.Helper()
	data, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// modelSet is one SidecarSet that takes part, with the revision that is injected.
type modelSet struct {
	name     string
	content  *appsv1beta1.SidecarSet
	compiled *inject.Compiled
	revision string
	choice   string
}

type model struct {
	pod  *corev1.Pod // as submitted, but for patchPodMetadata
	sets []modelSet
	err  error
}

func newModel(t *testing.T, w world) *model {
	m := &model{pod: &corev1.Pod{}}
	convert(t, w.pod, m.pod)
	if m.pod.Annotations == nil {
		m.pod.Annotations = map[string]string{}
	}
	bases := map[string]bool{}
	sidecarSets := slices.SortedFunc(slices.Values(w.sets), func(a, b *inject.Compiled) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, p := range sidecarSets {
		set := w.contents[p]
		if set.Spec.InjectionStrategy.Paused {
			continue
		}
		if set.Annotations["apps.kruise.io/sidecarset-canary"] == "true" {
			bases[set.Annotations["apps.kruise.io/sidecarset-base"]] = true
		}
		s := modelSet{name: set.Name, content: set, compiled: p, revision: set.Status.LatestRevision}
		if r := set.Spec.InjectionStrategy.Revision; r != nil {
			update := set.Spec.UpdateStrategy
			old := r.Policy == "Always" || update.Paused
			if update.Selector != nil {
				_, labelled := m.pod.Labels["from"]
				old = old || labelled != (update.Selector.MatchExpressions[0].Operator == "Exists")
			}
			if !old {
				var percent int
				_, _ = fmt.Sscanf(set.Spec.UpdateStrategy.Partition.StrVal, "%d%%", &percent)
				old, s.choice = w.draws[set.Name] < float64(percent)/100, "Current"
				if old {
					s.choice = *r.RevisionName
				}
			}
			if old {
				s.compiled = w.history[set.Name]
				s.content, s.revision = w.contents[s.compiled], *r.RevisionName
			}
		}
		m.sets = append(m.sets, s)
	}
	m.sets = slices.DeleteFunc(m.sets, func(s modelSet) bool { return bases[s.name] })
	return m
}

func (m *model) fail(format string, args ...any) {
	m.err = errors.Join(m.err, fmt.Errorf(format, args...))
}

func (m *model) run() (*corev1.Pod, error) {
	m.patchMetadata()
	var initContainers, containers []modelContainer
	var secrets []corev1.LocalObjectReference
	var volumes []corev1.Volume
	for _, s := range m.sets {
		for _, list := range []struct {
			init  bool
			items []appsv1beta1.SidecarContainer
			into  *[]modelContainer
		}{{true, s.content.Spec.InitContainers, &initContainers}, {false, s.content.Spec.Containers, &containers}} {
			for i := range list.items {
				*list.into = append(*list.into, m.sidecar(&list.items[i], list.init)...)
				volumes = append(volumes, ownVolumes(s.content, &list.items[i])...)
			}
		}
		secrets = append(secrets, s.content.Spec.ImagePullSecrets...)
	}
	m.checkNames(initContainers, containers)
	slices.SortStableFunc(initContainers, func(a, b modelContainer) int { return strings.Compare(a.Name, b.Name) })
	out := m.pod.DeepCopy()
	out.Spec.InitContainers = mergeModel(out.Spec.InitContainers, initContainers)
	out.Spec.Containers = mergeModel(out.Spec.Containers, containers)
	if len(initContainers)+len(containers) > 0 {
		for _, v := range volumes {
			if !slices.ContainsFunc(out.Spec.Volumes, func(has corev1.Volume) bool { return has.Name == v.Name }) {
				out.Spec.Volumes = append(out.Spec.Volumes, v)
			}
		}
		for _, s := range secrets {
			if !slices.Contains(out.Spec.ImagePullSecrets, s) {
				out.Spec.ImagePullSecrets = append(out.Spec.ImagePullSecrets, s)
			}
		}
		m.record(out)
	}
	m.recordChoices(out)
	return out, m.err
}

type modelContainer struct {
	corev1.Container
	before bool
	there  bool // the Pod has it
}

// mergeModel replaces the sidecars that the Pod has. It adds the others among our sidecars
// at the front of the Pod's list, or among those at its end.
func mergeModel(has []corev1.Container, add []modelContainer) []corev1.Container {
	rank := func(name string, before bool) int {
		return slices.IndexFunc(add, func(c modelContainer) bool { return c.Name == name && c.before == before })
	}
	front := slices.IndexFunc(has, func(h corev1.Container) bool { return rank(h.Name, true) < 0 })
	if front < 0 {
		front = len(has)
	}
	back := len(has)
	for back > front && rank(has[back-1].Name, false) >= 0 {
		back--
	}
	first, own, last := slices.Clone(has[:front]), has[front:back], slices.Clone(has[back:])
	for i, c := range add {
		for _, list := range [][]corev1.Container{first, own, last} {
			if at := slices.IndexFunc(list, func(h corev1.Container) bool { return h.Name == c.Name }); at >= 0 {
				list[at] = c.Container
				add[i].there = true
			}
		}
	}
	for i, c := range add {
		if c.before && !c.there { // behind all that come before it
			at := len(first)
			for at > 0 && rank(first[at-1].Name, true) > i {
				at--
			}
			first = slices.Insert(first, at, c.Container)
		}
	}
	for i, c := range slices.Backward(add) {
		if !c.before && !c.there { // in front of all that come behind it
			at := 0
			for at < len(last) && rank(last[at].Name, false) < i {
				at++
			}
			last = slices.Insert(last, at, c.Container)
		}
	}
	return slices.Concat(first, own, last)
}

func (m *model) checkNames(lists ...[]modelContainer) {
	seen := map[string]bool{}
	for i, list := range lists {
		same, other := m.pod.Spec.InitContainers, m.pod.Spec.Containers
		if i == 1 {
			same, other = other, same
		}
		for _, c := range list {
			named := func(has corev1.Container) bool { return has.Name == c.Name }
			at := slices.IndexFunc(same, named)
			if seen[c.Name] || slices.ContainsFunc(other, named) || at >= 0 && !isInjected(same[at]) {
				m.fail("the name %s is taken", c.Name)
			}
			seen[c.Name] = true
		}
	}
}

func isInjected(c corev1.Container) bool {
	at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "IS_INJECTED" })
	return at >= 0 && c.Env[at].Value == "true"
}

func (m *model) patchMetadata() {
	for _, s := range m.sets {
		for _, entry := range s.content.Spec.PatchPodMetadata {
			for key, value := range entry.Annotations {
				has, present := m.pod.Annotations[key]
				switch {
				case !present, entry.PatchPolicy == "Overwrite", entry.PatchPolicy == "MergePatchJson" && has == "":
					m.pod.Annotations[key] = value
				case entry.PatchPolicy == "MergePatchJson" && has != value:
					merged, err := jsonpatch.MergePatch([]byte(has), []byte(value))
					if err != nil {
						m.fail("merging %s: %v", key, err)
					}
					m.pod.Annotations[key] = string(merged)
				}
			}
		}
	}
}

func ownVolumes(set *appsv1beta1.SidecarSet, c *appsv1beta1.SidecarContainer) (used []corev1.Volume) {
	var names []string
	for _, mount := range c.VolumeMounts {
		names = append(names, mount.Name)
	}
	for _, device := range c.VolumeDevices {
		names = append(names, device.Name)
	}
	for _, name := range names {
		for _, v := range set.Spec.Volumes {
			if v.Name == name {
				used = append(used, v)
			}
		}
	}
	return used
}

var reference = regexp.MustCompile(`\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)`)

// sidecar is section 5.6.
func (m *model) sidecar(s *appsv1beta1.SidecarContainer, init bool) []modelContainer {
	c := s.Container.DeepCopy()
	var taken []corev1.EnvVar
	for _, tr := range s.TransferEnv {
		names := append(slices.Clone(tr.EnvNames), tr.EnvName)
		slices.Sort(names)
		for _, from := range m.pod.Spec.Containers {
			for _, name := range slices.Compact(names) {
				if from.Name == m.sourceName(tr) && !m.isSidecarName(from.Name) {
					taken = append(taken, lastVariable(from, name)...)
				}
			}
		}
	}
	own, ownDevices := c.VolumeMounts, c.VolumeDevices
	for _, from := range m.pod.Spec.Containers {
		if isInjected(from) || s.ShareVolumePolicy.Type != "enabled" {
			continue
		}
		for _, mount := range from.VolumeMounts {
			for _, match := range reference.FindAllStringSubmatch(mount.SubPathExpr, -1) {
				taken = append(taken, lastVariable(from, match[1])...)
			}
			if !slices.ContainsFunc(own, func(o corev1.VolumeMount) bool { return o.MountPath == mount.MountPath }) &&
				!slices.ContainsFunc(ownDevices, func(o corev1.VolumeDevice) bool { return o.DevicePath == mount.MountPath }) {
				own = append(own, mount)
			}
		}
	}
	for _, from := range m.pod.Spec.Containers {
		if isInjected(from) || s.ShareVolumeDevicePolicy == nil || s.ShareVolumeDevicePolicy.Type != "enabled" {
			continue
		}
		for _, device := range from.VolumeDevices {
			if !slices.ContainsFunc(own, func(o corev1.VolumeMount) bool { return o.MountPath == device.DevicePath }) &&
				!slices.ContainsFunc(ownDevices, func(o corev1.VolumeDevice) bool { return o.DevicePath == device.DevicePath || o.Name == device.Name }) {
				ownDevices = append(ownDevices, device)
			}
		}
	}
	c.VolumeMounts, c.VolumeDevices = own, ownDevices
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "IS_INJECTED" })
	c.Env = append(c.Env, corev1.EnvVar{Name: "IS_INJECTED", Value: "true"})
	for _, e := range taken {
		if !slices.ContainsFunc(c.Env, func(has corev1.EnvVar) bool { return has.Name == e.Name }) {
			c.Env = append(c.Env, e)
		}
	}
	if s.ResourcesPolicy != nil {
		c.Resources = m.resources(s.ResourcesPolicy)
	}
	before := s.PodInjectPolicy == "BeforeAppContainer"
	if s.UpgradeStrategy.UpgradeType != "HotUpgrade" || init && (s.RestartPolicy == nil || *s.RestartPolicy != "Always") {
		return []modelContainer{{Container: *c, before: before}}
	}
	first, second := c.DeepCopy(), c.DeepCopy()
	first.Name, second.Name, second.Image = c.Name+"-1", c.Name+"-2", s.UpgradeStrategy.HotUpgradeEmptyImage
	for _, one := range []*corev1.Container{first, second} {
		for name, prefix := range map[string]string{"SIDECARSET_VERSION": "version.", "SIDECARSET_VERSION_ALT": "versionalt."} {
			one.Env = append(one.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
				FieldPath: "metadata.annotations['" + prefix + "sidecarset.kruise.io/" + one.Name + "']"}}})
		}
		slices.SortFunc(one.Env[len(one.Env)-2:], func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	}
	return []modelContainer{{Container: *first, before: before}, {Container: *second, before: before}}
}

func (m *model) sourceName(t appsv1beta1.TransferEnvVar) string {
	if t.SourceContainerNameFrom == nil {
		return t.SourceContainerName
	}
	switch t.SourceContainerNameFrom.FieldRef.FieldPath {
	case "metadata.labels['from']":
		return m.pod.Labels["from"]
	case "metadata.annotations['k/from']":
		return m.pod.Annotations["k/from"]
	}
	return "" // nothing else names a container
}

// isSidecarName reports whether a name is that of a sidecar: one that the Pod already has
// is not a source.
func (m *model) isSidecarName(name string) bool {
	for _, s := range m.sets {
		for i := range s.content.Spec.Containers {
			c := &s.content.Spec.Containers[i]
			names := []string{c.Name}
			if c.UpgradeStrategy.UpgradeType == "HotUpgrade" {
				names = []string{c.Name + "-1", c.Name + "-2"}
			}
			if slices.Contains(names, name) {
				return true
			}
		}
	}
	return false
}

func lastVariable(c corev1.Container, name string) []corev1.EnvVar {
	for _, e := range slices.Backward(c.Env) {
		if e.Name == name {
			return []corev1.EnvVar{e}
		}
	}
	return nil
}

// resources is section 5.9.
func (m *model) resources(p *appsv1beta1.ResourcesPolicy) corev1.ResourceRequirements {
	var targets []corev1.Container
	for _, c := range m.pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == "Always" {
			targets = append(targets, c)
		}
	}
	targets = append(targets, m.pod.Spec.Containers...)
	targets = slices.DeleteFunc(targets, func(c corev1.Container) bool {
		return !regexp.MustCompile(p.TargetContainersNameRegex).MatchString(c.Name) || m.belongsToSidecars(c.Name)
	})
	if len(targets) == 0 {
		m.fail("no target")
	}
	out := corev1.ResourceRequirements{}
	for _, e := range []struct {
		text     string
		name     corev1.ResourceName
		of       func(*corev1.ResourceRequirements) *corev1.ResourceList
		optional bool
	}{
		{p.ResourcesExpr.Limits.CPU, "cpu", func(r *corev1.ResourceRequirements) *corev1.ResourceList { return &r.Limits }, true},
		{p.ResourcesExpr.Limits.Memory, "memory", func(r *corev1.ResourceRequirements) *corev1.ResourceList { return &r.Limits }, true},
		{p.ResourcesExpr.Requests.Memory, "memory", func(r *corev1.ResourceRequirements) *corev1.ResourceList { return &r.Requests }, false},
	} {
		total, missing := resource.Quantity{}, false
		for i := range targets {
			q, set := (*e.of(&targets[i].Resources))[e.name]
			missing = missing || !set
			switch {
			case p.TargetContainersMode == "sum":
				total.Add(q)
			case q.Cmp(total) > 0:
				total = q
			}
		}
		if e.optional && missing {
			continue
		}
		compiled, err := expr.Parse(e.text, expr.Variable(e.name))
		if err != nil {
			m.fail("%v", err)
			continue
		}
		q, err := compiled.Eval(total)
		if err != nil {
			m.fail("%v", err)
			continue
		}
		list := e.of(&out)
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[e.name] = q
	}
	return out
}

func (m *model) belongsToSidecars(name string) bool {
	for _, s := range m.sets {
		for _, c := range slices.Concat(s.content.Spec.InitContainers, s.content.Spec.Containers) {
			hot := c.UpgradeStrategy.UpgradeType == "HotUpgrade"
			if name == c.Name || hot && (name == c.Name+"-1" || name == c.Name+"-2") {
				return true
			}
		}
	}
	return false
}
