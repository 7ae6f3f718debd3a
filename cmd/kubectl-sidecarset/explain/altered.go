package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// findTheProgram is the remedy where another program has changed a sidecar.
const findTheProgram = "Find the program: kubectl get mutatingwebhookconfigurations lists those that may change Pods, and so does mutatingadmissionpolicies where the cluster has them. Update it, or have it leave these Pods alone."

// injectedPod is a Pod with the sidecars that the webhook injects.
func injectedPod(pod map[string]any, decision *clusterview.Decision) (*corev1.Pod, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	if operations := decision.Patch(); operations != nil {
		patch, err := jsonpatch.DecodePatch(operations)
		if err != nil {
			return nil, err
		}
		if text, err = patch.Apply(text); err != nil {
			return nil, err
		}
	}
	out := &corev1.Pod{}
	return out, json.Unmarshal(text, out)
}

// find returns a container of a Pod, and whether it is an init container.
func find(pod *corev1.Pod, name string) (c *corev1.Container, isInit bool) {
	if c = podstate.Find(pod.Spec.InitContainers, name); c != nil {
		return c, true
	}
	return podstate.Find(pod.Spec.Containers, name), false
}

// lostRestartPolicy says that a native sidecar has become an ordinary init container.
func lostRestartPolicy(name string) string {
	return fmt.Sprintf("Another program changed the Pod after the injection: container %q has lost restartPolicy: Always, so it is no longer a sidecar. The Pod waits until the container ends, perhaps for ever.", name)
}

// altered says what another program has changed of a container after the injection, in sentences.
func altered(want *corev1.Container, pod *corev1.Pod) (said []string) {
	got, isInit := find(pod, want.Name)
	if got == nil {
		return []string{fmt.Sprintf("Another program changed the Pod after the injection: container %q is gone.", want.Name)}
	}
	if isInit && want.RestartPolicy != nil && got.RestartPolicy == nil {
		said = append(said, lostRestartPolicy(want.Name))
	}
	if got.Image != want.Image {
		said = append(said, fmt.Sprintf("Another program changed the Pod after the injection: container %q has image %s; %s was injected.", want.Name, got.Image, want.Image))
	}
	var lost, other []string
	for _, m := range want.VolumeMounts {
		switch at := slices.IndexFunc(got.VolumeMounts, func(g corev1.VolumeMount) bool { return g.MountPath == m.MountPath }); {
		case at < 0:
			lost = append(lost, m.MountPath)
		case got.VolumeMounts[at].Name != m.Name:
			other = append(other, m.MountPath)
		}
	}
	if len(lost) > 0 {
		said = append(said, fmt.Sprintf("Another program changed the Pod after the injection: container %q has lost its mounts %s.", want.Name, strings.Join(lost, ", ")))
	}
	if len(other) > 0 {
		said = append(said, fmt.Sprintf("Another program changed the Pod after the injection: container %q has other volumes at %s.", want.Name, strings.Join(other, ", ")))
	}
	return said
}

// isAltered reports whether another program has changed sidecars of a running Pod, and answers so.
func (r *running) isAltered(p *inject.Compiled, u *Updater, a *Answer) bool {
	said := r.alteredOf(p, u)
	if len(said) == 0 {
		return false
	}
	a.Decision, a.Reasons, a.Remedies = Altered, said, []string{findTheProgram, "After that, recreate the Pod: " + r.renewal()}
	return true
}

// alteredOf says what another program has changed of the sidecars of a running Pod: of the revision that
// the Pod records, as far as that is known.
func (r *running) alteredOf(p *inject.Compiled, u *Updater) (said []string) {
	spec := u.spec
	if name := p.Name(); r.record.Hash(name) != p.Hash {
		recorded := u.Recorded(r.pod)
		if recorded == nil {
			return lostByRecord(r.record, name, r.pod)
		}
		var err error
		if spec, err = revision.Spec(recorded.Data.Raw); err != nil {
			return lostByRecord(r.record, name, r.pod)
		}
	}
	revision, err := Revision(spec)
	if err != nil {
		return nil
	}
	for i := range revision.Containers {
		if c := &revision.Containers[i]; podHas(r.pod, c.Name) { // what is missing has a reason of its own; hot upgrades have other names
			said = append(said, altered(c, r.pod)...)
		}
	}
	return said
}

// Revision is what the spec of a SidecarSet brings, as a PodSpec: its containers and init containers are all
// Containers.
func Revision(spec map[string]any) (revision corev1.PodSpec, err error) {
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"containers": spec["containers"], "initContainers": spec["initContainers"], "volumes": spec["volumes"]}, &revision)
	revision.Containers, revision.InitContainers = slices.Concat(revision.InitContainers, revision.Containers), nil
	return revision, err
}

func podHas(pod *corev1.Pod, name string) bool {
	c, _ := find(pod, name)
	return c != nil
}

// lostByRecord names the sidecars that a Pod records, and that are ordinary init containers: a record has
// native sidecars only.
func lostByRecord(record podstate.Hashes, name string, pod *corev1.Pod) (said []string) {
	for set, sidecars := range record.Sidecars() {
		for _, sidecar := range sidecars {
			if c, isInit := find(pod, sidecar); set == name && isInit && c.RestartPolicy == nil {
				said = append(said, lostRestartPolicy(sidecar))
			}
		}
	}
	return said
}

// Reference is a ConfigMap or a Secret that a container cannot start without.
type Reference struct{ Kind, Name string }

func (r Reference) String() string { return r.Kind + " " + r.Name }

// References are the ConfigMaps and Secrets that containers cannot start without: those of the volumes that
// they mount, and of their variables. Optional ones are left out.
func References(containers []corev1.Container, volumes []corev1.Volume) []Reference {
	found := map[Reference]bool{}
	add := func(kind, name string, optional *bool) {
		if name != "" && !strings.Contains(name, "$(") && (optional == nil || !*optional) {
			found[Reference{kind, name}] = true
		}
	}
	ofVolume := func(v *corev1.Volume) {
		if v.ConfigMap != nil {
			add("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
		}
		if v.Secret != nil {
			add("Secret", v.Secret.SecretName, v.Secret.Optional)
		}
		if v.Projected == nil {
			return
		}
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add("ConfigMap", s.ConfigMap.Name, s.ConfigMap.Optional)
			}
			if s.Secret != nil {
				add("Secret", s.Secret.Name, s.Secret.Optional)
			}
		}
	}
	for i := range containers {
		c := &containers[i]
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				add("ConfigMap", from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
			}
			if from.SecretRef != nil {
				add("Secret", from.SecretRef.Name, from.SecretRef.Optional)
			}
		}
		for _, env := range c.Env {
			if env.ValueFrom == nil {
				continue
			}
			if ref := env.ValueFrom.ConfigMapKeyRef; ref != nil {
				add("ConfigMap", ref.Name, ref.Optional)
			}
			if ref := env.ValueFrom.SecretKeyRef; ref != nil {
				add("Secret", ref.Name, ref.Optional)
			}
		}
	}
	for i := range volumes {
		isMounted := func(c corev1.Container) bool {
			return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumes[i].Name })
		}
		if slices.ContainsFunc(containers, isMounted) {
			ofVolume(&volumes[i])
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b Reference) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
}

// lacking says which ConfigMaps and Secrets of these containers of a Pod its Namespace lacks.
func (e *Explainer) lacking(ctx context.Context, pod *corev1.Pod, namespace string, names []string, a *Answer) {
	if e.Exists == nil {
		return
	}
	var containers []corev1.Container
	for _, name := range names {
		if c, _ := find(pod, name); c != nil {
			containers = append(containers, *c)
		}
	}
	for _, ref := range References(containers, pod.Spec.Volumes) {
		switch exists, err := e.Exists(ctx, ref, namespace); {
		case err != nil:
			a.Reasons = append(a.Reasons, fmt.Sprintf("It needs %s in namespace %s. Whether that exists is not known: %v.", ref, namespace, err))
		case !exists:
			a.Reasons = append(a.Reasons, fmt.Sprintf("It needs %s, which namespace %s does not have: the container does not start.", ref, namespace))
			a.Remedies = append(a.Remedies, fmt.Sprintf("Create %s in namespace %s, or mark it as optional in the SidecarSet.", ref, namespace))
		}
	}
}

// Recorded explains by a Pod alone, without its SidecarSets, which cannot be read.
func (e *Explainer) Recorded(ctx context.Context, pod *corev1.Pod) *Report {
	r := &Report{Namespace: pod.Namespace, Running: pod.UID != ""}
	record := podstate.ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash])
	sidecars := maps.Collect(record.Sidecars())
	for _, name := range podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList]) {
		a := Answer{SidecarSet: name, Decision: ByRecord, Revision: record.Revision(name)}
		for _, sidecar := range sidecars[name] {
			if c, _ := find(pod, sidecar); c != nil {
				a.Reasons = append(a.Reasons, fmt.Sprintf("Brings container %s, image %s.", c.Name, c.Image))
			}
		}
		if lost := lostByRecord(record, name, pod); len(lost) > 0 {
			a.Decision, a.Reasons, a.Remedies = Altered, append(a.Reasons, lost...), append(a.Remedies, findTheProgram)
		}
		e.lacking(ctx, pod, pod.Namespace, sidecars[name], &a)
		r.SidecarSets = append(r.SidecarSets, a)
	}
	return r
}
