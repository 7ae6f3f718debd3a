package explain_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/revision"
)

var now = time.Date(2026, 1, 9, 0, 0, 0, 0, time.UTC)

// explainer knows SidecarSets as a cluster stores them, with a revision of another revision each.
func explainer(t *testing.T, sets ...members) *explain.Explainer {
	t.Helper()
	e := &explain.Explainer{}
	for _, set := range sets {
		earlier := fixtures.SidecarSet(set["metadata"].(members)["name"].(string)).Container("log", "log:v0").Map()
		data, err := revision.Data(earlier["spec"].(members))
		if err != nil {
			t.Fatal(err)
		}
		r := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: data}, Revision: 1}
		r.Name, r.Labels = "r0", map[string]string{appsv1beta1.LabelSidecarSetName: earlier["metadata"].(members)["name"].(string)}
		r.Annotations = map[string]string{}
		for key, value := range earlier["metadata"].(members)["annotations"].(members) {
			r.Annotations[key] = value.(string)
		}
		e.Revisions = append(e.Revisions, r)
	}
	e.World = clusterview.New(clusterview.Parts{SidecarSets: sets, Namespaces: map[string]labels.Set{"default": {}}, Excluded: []string{"kube-system"}, Now: now})
	return e
}

// logging is a stored SidecarSet from the second of January.
func logging() *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("log").Container("log", "log:v1").Spec("updateStrategy", members{"type": "RollingUpdate"})
}

func stored(b *fixtures.SidecarSetBuilder, conditions ...any) members {
	set := b.Map()
	metadata := set["metadata"].(members)
	metadata["uid"], metadata["generation"], metadata["creationTimestamp"] = "7", int64(1), "2026-01-02T00:00:00Z"
	set["status"] = members{"observedGeneration": int64(1), "latestRevision": "r1", "conditions": conditions}
	return set
}

func condition(kind, status, reason string) members {
	return members{"type": kind, "status": status, "reason": reason, "message": "because of it", "observedGeneration": int64(1), "lastTransitionTime": "2026-01-05T00:00:00Z"}
}

// injected is a running Pod from the third of January that a SidecarSet was injected into.
func injected(t *testing.T, by members) members {
	t.Helper()
	pod := fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj()
	plan, err := inject.Compute(fixtures.Input(t, pod, by))
	if err != nil {
		t.Fatal(err)
	}
	return running(fixtures.Apply(t, plan, pod), "2026-01-03T00:00:00Z")
}

func running(pod members, created string) members {
	metadata := pod["metadata"].(members)
	metadata["uid"], metadata["namespace"], metadata["creationTimestamp"] = "1", "default", created
	pod["status"] = members{"phase": "Running"}
	return pod
}

func plain(created string) members {
	return running(fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj(), created)
}

// with sets a member of the metadata.
func with(pod members, member string, value any) members {
	pod["metadata"].(members)[member] = value
	return pod
}

func TestRunning(t *testing.T) {
	const early, late = "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"
	current := stored(logging())
	old := fixtures.SidecarSet("log").Container("log", "log:v0").Map() // this revision is recorded
	ready := condition("Ready", "True", "Injecting")
	blocked := stored(logging())
	blocked["status"].(members)["blockedPods"] = []any{members{"reason": "NodeNotReady", "pods": int64(1), "first": []any{"default/web"}, "message": "node n"}}
	held := stored(logging().Annotation(appsv1beta1.AnnotationNewPods, appsv1beta1.StableNewPods))
	held["status"].(members)["stableRevision"] = "r0"
	annotated := func(key, value string) members { return stored(logging().Annotation(key, value)) }
	tests := map[string]struct {
		set  members
		pod  members
		want explain.Decision
		says []string
	}{
		"the current revision":    {current, injected(t, current), explain.Current, nil},
		"other images":            {current, injected(t, old), explain.Outdated, []string{"revision r1", "A rollout updates it in place."}},
		"a revision that is held": {held, injected(t, fixtures.SidecarSet("log").Container("log", "log:v0").LatestRevision("r0").Map()), explain.Outdated, []string{"New Pods get r0 until enough running Pods are available with r1 (sidecarset.io/new-pods: Stable)."}},
		"a rollout that stopped":  {stored(logging(), condition("Progressing", "False", "PartitionReached")), injected(t, old), explain.Outdated, []string{"It is PartitionReached: Because of it."}},
		"a paused rollout":        {stored(logging().Spec("updateStrategy", members{"paused": true})), injected(t, old), explain.Outdated, []string{"spec.updateStrategy.paused is true", "Set it to false"}},
		"no rollouts":             {stored(fixtures.SidecarSet("log").Container("log", "log:v1")), injected(t, old), explain.Outdated, []string{"type is NotUpdate", "Recreate the Pod"}},
		"a rollout of other Pods": {stored(logging().Spec("updateStrategy", members{"selector": members{"matchLabels": members{"x": "1"}}})), injected(t, old), explain.Outdated, []string{"spec.updateStrategy.selector does not select it"}},
		"a blocked Pod":           {blocked, injected(t, old), explain.Outdated, []string{"NodeNotReady", "Node n.", "Nothing: the leader updates the Pod when its node is ready."}},
		"an immutable field":      {stored(logging().Env("A", "1")), injected(t, old), explain.Outdated, []string{"ImmutableFieldChanged", "spec.containers[log].env", "nothing replaces it"}},
		"a deleted SidecarSet of the same name": {
			current, with(injected(t, fixtures.SidecarSet("log").Container("log", "log:other").Map()), "creationTimestamp", early), explain.Outdated, []string{"a deleted one of the same name"},
		},
		"an unknown revision":   {current, injected(t, fixtures.SidecarSet("log").Container("log", "log:other").Map()), explain.Unverified, []string{"neither the SidecarSet nor any of its recorded revisions has"}},
		"an unmarked container": {current, unmark(injected(t, current)), explain.Unverified, []string{`"log" lacks IS_INJECTED=true`}},
		"an older Pod":          {current, plain(early), explain.Uninjected, []string{"is older than the SidecarSet", "Recreate the Pod"}},
		"no known cause":        {current, plain(late), explain.Uninjected, []string{"audit log"}},
		"policy Ignore":         {annotated("sidecarset.io/failure-policy", "Ignore"), plain(late), explain.Uninjected, []string{"failure-policy: Ignore"}},
		"Ready later":           {stored(logging(), ready), plain(late), explain.Uninjected, []string{"condition Ready changed after that (2026-01-05T00:00:00Z, now True)"}},
		"paused":                {stored(logging().Paused()), plain(late), explain.Uninjected, []string{"would not get it either (Paused)", "Set it to false"}},
		"not Ready":             {stored(logging(), condition("Ready", "False", "NoReplica")), plain(late), explain.Uninjected, []string{"would not get it either (NotReady)", "NoReplica"}},
		"refused now":           {current, running(fixtures.Pod("web").Label("app", "web").Container("log", "own").Obj(), late), explain.Uninjected, []string{"(Denied)", `brings the container "log"`}},
		"a list without sidecars": {
			current, with(plain(late), "annotations", members{appsv1beta1.AnnotationInjectedList: "log"}), explain.Uninjected, []string{"lacks log", "another program wrote the list"},
		},
		"a removed record":           {current, with(injected(t, current), "annotations", members{appsv1beta1.AnnotationHash: `{"log":{"hash":"x","sidecarList":["log"]}}`}), explain.Uninjected, []string{"the SidecarSet was removed from its annotation"}},
		"an excluded namespace":      {current, with(plain(late), "namespace", "kube-system"), explain.NamespaceExcluded, []string{"--excluded-namespaces"}},
		"a static Pod":               {current, with(plain(late), "annotations", members{"kubernetes.io/config.mirror": "x"}), explain.MirrorPod, nil},
		"labels that changed":        {current, with(injected(t, current), "labels", members{"app": "other"}), explain.NoLongerSelected, []string{"Restore the label"}},
		"a list of another Pod":      {current, with(with(plain(late), "labels", members{"app": "other"}), "annotations", members{appsv1beta1.AnnotationInjectedList: "log"}), explain.Unverified, []string{"no container of the Pod was injected", "Remove the annotations"}},
		"labels of another Pod":      {current, with(plain(late), "labels", members{"app": "other"}), explain.NotSelected, nil},
		"a SidecarSet with an error": {stored(logging().Spec("selector", members{})), plain(late), explain.Unusable, []string{"spec.selector"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			report, err := explainer(t, tc.set).Running(t.Context(), tc.pod)
			if err != nil {
				t.Fatal(err)
			}
			check(t, report, "log", tc.want, tc.says...)
		})
	}
}

// unmark removes the mark of injected containers.
func unmark(pod members) members {
	for _, c := range pod["spec"].(members)["containers"].([]any) {
		delete(c.(members), "env")
	}
	return pod
}

// check looks for the answer about one SidecarSet.
func check(t *testing.T, report *explain.Report, name string, want explain.Decision, says ...string) {
	t.Helper()
	at := slices.IndexFunc(report.SidecarSets, func(a explain.Answer) bool { return a.SidecarSet == name })
	if at < 0 {
		t.Fatalf("no answer about %s: %+v", name, report)
	}
	a := report.SidecarSets[at]
	if a.Decision != want {
		t.Errorf("decision %s, want %s", a.Decision, want)
	}
	text := strings.Join(append(a.Reasons, a.Remedies...), "\n")
	for _, part := range says {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not said:\n%s", part, text)
		}
	}
}

func TestDeletedSidecarSetsAndPodsThatEnd(t *testing.T) {
	pod := with(injected(t, fixtures.SidecarSet("gone").Container("log", "log:v1").Map()), "deletionTimestamp", "2026-01-04T00:00:00Z")
	report, err := explainer(t, stored(logging())).Running(t.Context(), pod)
	if err != nil || !strings.Contains(strings.Join(report.Notes, " "), "being deleted") {
		t.Fatalf("%+v, %v", report, err)
	}
	check(t, report, "gone", explain.NoSuchSidecarSet, "there is no SidecarSet of that name")
}

// created is the Pod that an API server answers to a dry run.
func created(t *testing.T, by members, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(injected(t, by), pod); err != nil {
		t.Fatal(err)
	}
	for _, change := range change {
		change(pod)
	}
	return pod
}

// native is a stored SidecarSet with a native sidecar, and its Pod.
func native() members {
	return stored(fixtures.SidecarSet("log").Spec("initContainers", []any{members{
		"name": "log", "image": "log:v1", "restartPolicy": "Always", "envFrom": []any{members{"secretRef": members{"name": "token"}}},
		"volumeMounts": []any{members{"name": "config", "mountPath": "/config"}},
	}}).Spec("volumes", []any{members{"name": "config", "configMap": members{"name": "config"}}, members{"name": "more", "configMap": members{"name": "more", "optional": true}}}))
}

// What another program has changed of a sidecar is told, for the next Pod, for a running one, and to those
// who may not read SidecarSets.
func TestWhatAnotherCompiledChangedIsTold(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*corev1.Pod){
		"":                                   func(*corev1.Pod) {},
		`"log" has lost restartPolicy`:       func(p *corev1.Pod) { p.Spec.InitContainers[0].RestartPolicy = nil },
		`"log" has image mirror/log:v1`:      func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "mirror/log:v1" },
		`"log" has lost its mounts /config`:  func(p *corev1.Pod) { p.Spec.InitContainers[0].VolumeMounts = nil },
		`"log" has other volumes at /config`: func(p *corev1.Pod) { p.Spec.InitContainers[0].VolumeMounts[0].Name = "other" },
	} {
		set := native()
		e := explainer(t, set)
		next, err := e.Next(t.Context(), "default", fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
		if err != nil {
			t.Fatal(err)
		}
		next.Created(created(t, set, change))
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(created(t, set, change))
		if err != nil {
			t.Fatal(err)
		}
		running, err := e.Running(t.Context(), object)
		if err != nil {
			t.Fatal(err)
		}
		if says == "" {
			check(t, next, "log", explain.Injects)
			check(t, running, "log", explain.Current)
			check(t, e.Recorded(t.Context(), created(t, set)), "log", explain.ByRecord, "Brings container log, image log:v1")
			continue
		}
		check(t, next, "log", explain.Altered, says, "mutatingwebhookconfigurations")
		check(t, running, "log", explain.Altered, says, "recreate the Pod")
		if strings.Contains(says, "restartPolicy") {
			check(t, e.Recorded(t.Context(), created(t, set, change)), "log", explain.Altered, says)
		}
	}
}

func TestWhatTheNamespaceLacksIsNamed(t *testing.T) {
	t.Parallel()
	set := native()
	e := explainer(t, set)
	e.Exists = func(_ context.Context, ref explain.Reference, namespace string) (bool, error) {
		if ref.Kind == "Secret" {
			return false, errors.New("you may not read it")
		}
		return false, nil
	}
	next, err := e.Next(t.Context(), "default", fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
	if err != nil {
		t.Fatal(err)
	}
	running, err := e.Running(t.Context(), injected(t, set))
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range []*explain.Report{next, running, e.Recorded(t.Context(), created(t, set))} {
		check(t, report, "log", report.SidecarSets[0].Decision, "It needs ConfigMap config, which namespace default does not have", "Create ConfigMap config in namespace default", "It needs Secret token in namespace default. Whether that exists is not known: you may not read it")
		if text := strings.Join(report.SidecarSets[0].Reasons, " "); strings.Contains(text, "more") {
			t.Errorf("an optional one is named: %s", text)
		}
	}
}

// What the API server answers to a dry run changes the answers.
func TestTheAPIServersAnswer(t *testing.T) {
	next := func(sets ...members) *explain.Report {
		report, err := explainer(t, sets...).Next(t.Context(), "default", fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	log, mesh := stored(logging()), stored(fixtures.SidecarSet("mesh").Container("proxy", "proxy:v1"))

	report := next(log, mesh)
	report.Created(created(t, log))
	check(t, report, "log", explain.Injects)
	check(t, report, "mesh", explain.NotReady, "dry run of the API server returned the Pod without it")

	report = next(stored(logging(), condition("Ready", "False", "Pending")))
	report.Created(created(t, log))
	check(t, report, "log", explain.NotReady, "not Ready (False, Pending)", "did get it just now")

	for message, by := range map[string]string{
		`pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged (container "proxy" must not)`: `PodSecurity "baseline:latest"`,
		`admission webhook "policy.example.com" denied the request: image of "proxy"`:                            `webhook "policy.example.com"`,
		`failed calling webhook "s3.sidecarset-pods-1.sidecarset.io": timeout "proxy"`:                           `webhook "s3.sidecarset-pods-1.sidecarset.io"`,
		`failed calling webhook "8ec.pods.sidecarset.io": EOF "proxy"`:                                           "the API server, which cannot call the operator: kubectl sidecarset doctor says more",
		`ValidatingAdmissionPolicy 'limits' with binding 'all' denied request: "proxy"`:                          "ValidatingAdmissionPolicy 'limits'",
		`pods "x" is forbidden: exceeded quota: compute, requested: pods=1, "proxy"`:                             "ResourceQuota compute",
		`pods "x" is forbidden: failed quota: compute: must specify limits.cpu for: app,proxy`:                   "ResourceQuota compute",
		`Pod "x" is invalid: spec.containers[1].image: "proxy"`:                                                  "the API server",
	} {
		report = next(log, mesh)
		report.RefusedBy(message)
		if report.Refused == nil || report.Refused.By != by {
			t.Errorf("%s: refused by %+v, want %s", message, report.Refused, by)
		}
		check(t, report, "mesh", explain.Denied, `about container "proxy"`)
		check(t, report, "log", explain.PodDenied)
		if strings.Contains(message, "app") {
			check(t, report, "mesh", explain.Denied, `the Pod's own container "app", too`)
		}
	}
}

// For every Pod of the golden files, the decisions are the engine's.
func TestNextAgreesWithTheEngine(t *testing.T) {
	injects := 0
	for _, c := range fixtures.Cases(t) {
		e := &explain.Explainer{World: clusterview.New(clusterview.Parts{
			SidecarSets: c.SidecarSets, Revisions: c.Revisions, Namespaces: c.Namespaces, Excluded: []string{"kube-system"}, Now: now,
		})}
		decision, err := e.World.Decide(t.Context(), c.Namespace, c.Pod)
		if err != nil {
			t.Fatal(err)
		}
		report, err := e.Next(t.Context(), c.Namespace, c.Pod)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range report.SidecarSets {
			if a.Decision == explain.Injects {
				got = append(got, a.SidecarSet)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, decision.Plan.Injected) || (report.Refused != nil) != (decision.Refused != nil) {
			text, _ := json.Marshal(report)
			t.Errorf("%s: explained %q, engine %q, %v\n%s", c.Name, got, decision.Plan.Injected, decision.Refused, text)
		}
		injects += len(got)
	}
	if injects == 0 {
		t.Error("no case injects")
	}
}

// What is said about the next Pod besides the decision: which revision is held back (it is not called "not Ready" for that), the
// condition Required, and the warnings of this SidecarSet.
func TestNextSaysMore(t *testing.T) {
	held := stored(logging().Annotation(appsv1beta1.AnnotationNewPods, appsv1beta1.StableNewPods), condition("Ready", "False", appsv1beta1.ReasonRevisionNotStable))
	held["status"].(members)["stableRevision"] = "r0"
	required := stored(logging(), condition("Required", "False", "PolicyMissing"))
	required["metadata"].(members)["labels"] = members{appsv1beta1.LabelRequired: "true"}
	copies := stored(fixtures.SidecarSet("log").Spec("containers", []any{members{
		"name": "log", "image": "log:v1", "transferEnv": []any{members{"sourceContainerName": "nothing", "envName": "A"}},
	}}))
	other := stored(fixtures.SidecarSet("mesh").Container("proxy", "proxy:v1"))
	for says, set := range map[string]members{
		"New Pods get r0, because too few running Pods are available with r1 (sidecarset.io/new-pods: Stable).": held,
		"It has the label sidecarset.io/required (Required is False, PolicyMissing): because of it":             required,
		`"nothing"`: copies,
	} {
		e := explainer(t, set, other)
		e.World = clusterview.New(clusterview.Parts{SidecarSets: []members{set, other}, Revisions: e.Revisions, Namespaces: map[string]labels.Set{"default": {}}, Now: now})
		report, err := e.Next(t.Context(), "default", fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
		if err != nil {
			t.Fatal(err)
		}
		check(t, report, "log", explain.Injects, says)
		check(t, report, "mesh", explain.Injects)
		if about := report.SidecarSets[slices.IndexFunc(report.SidecarSets, func(a explain.Answer) bool { return a.SidecarSet == "mesh" })]; len(about.Reasons) != 1 {
			t.Errorf("of another SidecarSet it says %q", about.Reasons)
		}
	}
}
