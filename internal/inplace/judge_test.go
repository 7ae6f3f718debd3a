package inplace

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/podstate"
)

func policy(p corev1.ContainerRestartPolicy) *corev1.ContainerRestartPolicy { return &p }

var (
	always    = policy(corev1.ContainerRestartPolicyAlways)
	never     = policy(corev1.ContainerRestartPolicyNever)
	onFailure = policy(corev1.ContainerRestartPolicyOnFailure)
)

// Running-pods-facts §1.2 and §1.4, row by row: which container of which Pod may
// be restarted.
func TestJudgeOfContainersThatRunToCompletion(t *testing.T) {
	const (
		follows = Reason("")
		no      = RunToCompletion
		once    = RunsOnce
	)
	tests := map[string]struct {
		restart corev1.RestartPolicy
		job     bool
		init    bool
		own     *corev1.ContainerRestartPolicy
		want    Reason
	}{
		"Always, regular":                            {corev1.RestartPolicyAlways, false, false, nil, follows},
		"Always, native":                             {corev1.RestartPolicyAlways, false, true, always, follows},
		"Always, plain init":                         {corev1.RestartPolicyAlways, false, true, nil, follows},
		"Always, regular with its own Never":         {corev1.RestartPolicyAlways, false, false, never, once},
		"Always, regular with its own OnFailure":     {corev1.RestartPolicyAlways, false, false, onFailure, once},
		"Never, regular":                             {corev1.RestartPolicyNever, false, false, nil, no},
		"Never, regular with its own Always":         {corev1.RestartPolicyNever, false, false, always, follows},
		"Never, native":                              {corev1.RestartPolicyNever, false, true, always, follows},
		"Never, plain init":                          {corev1.RestartPolicyNever, false, true, nil, follows},
		"Never, init with its own OnFailure":         {corev1.RestartPolicyNever, false, true, onFailure, follows},
		"Never under a Job, native":                  {corev1.RestartPolicyNever, true, true, always, follows},
		"Never under a Job, regular":                 {corev1.RestartPolicyNever, true, false, nil, no},
		"OnFailure, regular":                         {corev1.RestartPolicyOnFailure, false, false, nil, no},
		"OnFailure, regular with its own Always":     {corev1.RestartPolicyOnFailure, false, false, always, follows},
		"OnFailure, native":                          {corev1.RestartPolicyOnFailure, false, true, always, follows},
		"OnFailure under a Job, regular":             {corev1.RestartPolicyOnFailure, true, false, nil, no},
		"OnFailure under a Job, native":              {corev1.RestartPolicyOnFailure, true, true, always, no},
		"OnFailure under a Job, regular with Always": {corev1.RestartPolicyOnFailure, true, false, always, no},
		"OnFailure under a Job, plain init":          {corev1.RestartPolicyOnFailure, true, true, nil, follows},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.restart}}
			if tc.job {
				yes := true
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", Controller: &yes}}
			}
			c := &corev1.Container{Name: "log", RestartPolicy: tc.own}
			kind := podstate.KindOf(pod, c)
			if tc.init {
				kind = podstate.InitKindOf(c)
			}
			got := judgeRestarts(&podstate.Summary{Facts: podstate.FactsOf(pod), RunsToCompletion: tc.restart != corev1.RestartPolicyAlways}, Node{}, podstate.Kinds(0).With(kind))
			way := map[Reason]Method{follows: Images, no: LeaveAlone, once: Recreate}[tc.want]
			if got.Reason != tc.want || got.Method != way {
				t.Errorf("verdict %+v, want %q", got, tc.want)
			}
			if kind.Init() != tc.init {
				t.Errorf("kind %d says init %v", kind, kind.Init())
			}
		})
	}
}

func TestJudge(t *testing.T) {
	name := podstate.MakeName
	const set = "mesh"
	restarting := podstate.Kinds(0).With(podstate.Regular)
	native := podstate.Kinds(0).With(podstate.Native).With(podstate.Plain)
	plain := podstate.Kinds(0).With(podstate.Plain)
	revision := &Revision{terms: terms{
		name: name(set), hash: name("h"), hashWithoutImage: name("w"), sidecars: []sidecar{{name: name("log"), containers: []podstate.Name{name("log")}}},
	}, differences: Differences{name("resources"): {}, name("restart"): {Restarts: true}, name("more"): {Other: true}}}
	uncompared := revision.With(nil)
	given := func(hash, without string) podstate.Injection {
		return podstate.Injection{SidecarSet: name(set), Hash: name(hash), HashWithoutImage: name(without)}
	}
	resizing := func(hash, without, to string) podstate.Injection {
		in := given(hash, without)
		in.ResizeTo = name(to)
		return in
	}
	images, current := given("old", "w"), given("h", "w")
	tests := map[string]struct {
		revision *Revision
		has      podstate.Injection
		edit     func(*podstate.Summary)
		node     Node
		changed  podstate.Kinds
		want     Verdict
	}{
		"the current revision":                    {has: current, want: Verdict{Method: Current}},
		"the current revision, unreadable record": {has: current, edit: func(r *podstate.Summary) { r.RecordUnreadable = true }, want: Verdict{Method: Current}},
		"not injected":                            {has: podstate.Injection{SidecarSet: name("other")}, want: Verdict{Method: LeaveAlone}},
		"a Pod that ends":                         {has: images, edit: func(r *podstate.Summary) { r.Active = false }, want: Verdict{Method: LeaveAlone}},
		"a mirror Pod":                            {has: current, edit: func(r *podstate.Summary) { r.Facts.Mirror = true }, want: Verdict{Method: LeaveAlone, Reason: MirrorPod}},
		"a Pod that lacks a container":            {has: given("old", "resources"), edit: func(r *podstate.Summary) { r.Containers = nil }, want: Verdict{Method: Recreate, Reason: ImmutableFieldChanged}},
		"resources":                               {has: given("old", "resources"), changed: restarting, want: Verdict{Method: Resize}},
		"resources, not compared yet":             {revision: uncompared, has: given("old", "resources"), changed: restarting, want: Verdict{Method: Unknown}},
		"images, not compared with others yet":    {revision: uncompared, has: images, changed: restarting, want: Verdict{Method: Images}},
		"the current revision, not compared yet":  {revision: uncompared, has: current, want: Verdict{Method: Current}},
		"resources, with a restart":               {has: given("old", "restart"), want: Verdict{Method: Recreate, Reason: ResizeRestarts}},
		"more than resources":                     {has: given("old", "more"), changed: restarting, want: Verdict{Method: Recreate, Reason: ImmutableFieldChanged}},
		"a revision that is not recorded":         {has: given("old", "gone"), want: Verdict{Method: Recreate, Reason: ImmutableFieldChanged}},
		"resources and an image that may not change": {has: given("old", "resources"), changed: native, edit: func(r *podstate.Summary) { r.Facts.RestartsAll = true },
			want: Verdict{Method: LeaveAlone, Reason: RestartRules}},
		"resources of a Pod that runs to completion": {has: given("old", "resources"), edit: func(r *podstate.Summary) { r.Facts.CountsRestarts = true }, want: Verdict{Method: Resize}},
		"a resize to be undone":                      {has: resizing("h", "w", "resources"), want: Verdict{Method: Resize}},
		"a resize to be undone, not compared yet":    {revision: uncompared, has: resizing("h", "w", "resources"), want: Verdict{Method: Unknown}},
		"a resize to the revision, not compared yet": {revision: uncompared, has: resizing("old", "w", "w"), want: Verdict{Method: Resize}},
		"a resize to be undone, and an image":        {has: resizing("old", "w", "resources"), changed: restarting, want: Verdict{Method: Resize}},
		"an unknown revision":                        {has: given("old", ""), want: Verdict{Method: Recreate, Reason: RevisionUnknown}},
		"an unreadable record":                       {has: images, edit: func(r *podstate.Summary) { r.RecordUnreadable = true }, want: Verdict{Method: LeaveAlone, Reason: RecordUnreadable}},
		"images":                                     {has: images, changed: restarting, want: Verdict{Method: Images}},
		"no image":                                   {has: images, want: Verdict{Method: Images}},
		"a regular container on an old node":         {has: images, changed: restarting, node: Node{TooOld: true}, want: Verdict{Method: Images}},
		"a native sidecar on an old node":            {has: images, changed: native, node: Node{TooOld: true}, want: Verdict{Method: Recreate, Reason: NodeTooOld}},
		"a plain init container on an old node":      {has: images, changed: plain, node: Node{TooOld: true}, want: Verdict{Method: Images}},
		"a node that is not ready":                   {has: images, changed: restarting, node: Node{NotReady: true}, want: Verdict{Method: Images}},
		"a rule that restarts all":                   {has: images, changed: native, edit: func(r *podstate.Summary) { r.Facts.RestartsAll = true }, want: Verdict{Method: LeaveAlone, Reason: RestartRules}},
		"a rule that restarts all, no restart":       {has: images, changed: plain, edit: func(r *podstate.Summary) { r.Facts.RestartsAll = true }, want: Verdict{Method: Images}},
		"a Job that counts, of which nothing runs":   {has: images, changed: plain, edit: func(r *podstate.Summary) { r.Facts.CountsRestarts = true }, want: Verdict{Method: Images}},
	}
	for title, tc := range tests {
		t.Run(title, func(t *testing.T) {
			r := &podstate.Summary{Active: true, Containers: []podstate.Container{{Name: name("log")}}, Injections: []podstate.Injection{tc.has}}
			if tc.edit != nil {
				tc.edit(r)
			}
			if tc.revision == nil {
				tc.revision = revision
			}
			got := tc.revision.judge(r, tc.node, tc.changed)
			if got.Changed != 0 && got.Changed != tc.changed {
				t.Errorf("kinds %d", got.Changed)
			}
			if got.Changed = 0; got != tc.want {
				t.Errorf("verdict %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestVerdictOnAResize(t *testing.T) {
	for state, want := range map[podstate.ResizeState]Verdict{
		podstate.ResizeOpen:     {Method: Resize},
		podstate.ResizeMoving:   {Method: Resize, Moves: true},
		podstate.ResizeDone:     {Method: Resize},
		podstate.ResizePutOff:   {Method: LeaveAlone, Reason: ResizeDeferred},
		podstate.ResizeExcluded: {Method: Recreate, Reason: ResizeInfeasible},
		podstate.ResizeBroken:   {Method: LeaveAlone, Reason: ResizeFailed},
	} {
		if got := (Verdict{Method: Resize}).observed(state); got != want {
			t.Errorf("state %d: %+v, want %+v", state, got, want)
		}
		if want.Reason != "" && !want.Reason.IsOfResize() {
			t.Errorf("%s is not of a resize", want.Reason)
		}
	}
}

func TestNodeOf(t *testing.T) {
	node := func(kubelet string, ready ...corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{}
		n.Status.NodeInfo.KubeletVersion = kubelet
		for _, is := range ready {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, corev1.NodeCondition{Type: corev1.NodeReady, Status: is})
		}
		return n
	}
	for name, tc := range map[string]struct {
		node *corev1.Node
		want Node
	}{
		"ready":         {node("v1.34.1", corev1.ConditionTrue), Node{}},
		"not ready":     {node("v1.34.1", corev1.ConditionFalse), Node{NotReady: true}},
		"unknown":       {node("v1.34.1", corev1.ConditionUnknown), Node{NotReady: true}},
		"not reported":  {node(""), Node{NotReady: true}},
		"the first":     {node("v1.32.0-rc.1", corev1.ConditionTrue), Node{}},
		"of a vendor":   {node("v1.30.2+k3s1", corev1.ConditionTrue), Node{TooOld: true}},
		"without a v":   {node("1.29", corev1.ConditionTrue), Node{TooOld: true}},
		"of the future": {node("v2.0.0", corev1.ConditionTrue), Node{}},
		"not a version": {node("unknown", corev1.ConditionTrue), Node{}},
		"an old one":    {node("v1.31.1", corev1.ConditionTrue), Node{TooOld: true}},
		"old and lost":  {node("v1.31.1", corev1.ConditionUnknown), Node{TooOld: true, NotReady: true}},
	} {
		if got := NodeOf(tc.node); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
