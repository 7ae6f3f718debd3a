package inplace_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/inplace"
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
		follows = inplace.Reason("")
		no      = inplace.RunToCompletion
	)
	tests := map[string]struct {
		restart corev1.RestartPolicy
		job     bool
		init    bool
		own     *corev1.ContainerRestartPolicy
		want    inplace.Reason
	}{
		"Always, regular":                            {corev1.RestartPolicyAlways, false, false, nil, follows},
		"Always, native":                             {corev1.RestartPolicyAlways, false, true, always, follows},
		"Always, plain init":                         {corev1.RestartPolicyAlways, false, true, nil, follows},
		"Always, regular with its own Never":         {corev1.RestartPolicyAlways, false, false, never, no},
		"Always, regular with its own OnFailure":     {corev1.RestartPolicyAlways, false, false, onFailure, no},
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
			kind := inplace.KindOf(pod, c)
			if tc.init {
				kind = inplace.InitKindOf(c)
			}
			got := inplace.Judge(inplace.Question{Facts: inplace.FactsOf(pod), SameWithoutImage: true, Changed: inplace.Kinds(0).With(kind)})
			if got.Reason != tc.want || (got.Way == inplace.Images) != (tc.want == follows) {
				t.Errorf("verdict %+v, want %q", got, tc.want)
			}
			if kind.Init() != tc.init {
				t.Errorf("kind %d says init %v", kind, kind.Init())
			}
		})
	}
}

func TestJudge(t *testing.T) {
	restarting := inplace.Kinds(0).With(inplace.Regular)
	native := inplace.Kinds(0).With(inplace.Native).With(inplace.Plain)
	plain := inplace.Kinds(0).With(inplace.Plain)
	tests := map[string]struct {
		q    inplace.Question
		want inplace.Verdict
	}{
		"the current content":                        {inplace.Question{SameHash: true, SameWithoutImage: true}, inplace.Verdict{Way: inplace.Current}},
		"the current content, unreadable record":     {inplace.Question{SameHash: true, RecordUnreadable: true}, inplace.Verdict{Way: inplace.Current}},
		"a mirror Pod":                               {inplace.Question{SameHash: true, Facts: inplace.Facts{Mirror: true}}, inplace.Verdict{Way: inplace.LeaveAlone, Reason: inplace.MirrorPod}},
		"more than images":                           {inplace.Question{Changed: restarting}, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ImmutableFieldChanged}},
		"resources":                                  {inplace.Question{Difference: &inplace.Difference{}, Changed: restarting}, inplace.Verdict{Way: inplace.Resize}},
		"resources, of what is not known yet":        {inplace.Question{Uncompared: true}, inplace.Verdict{Way: inplace.Resize}},
		"resources, with a restart":                  {inplace.Question{Difference: &inplace.Difference{Restarts: true}}, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ResizeRestarts}},
		"more than resources":                        {inplace.Question{Difference: &inplace.Difference{Other: true}}, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ImmutableFieldChanged}},
		"resources and an image that may not change": {inplace.Question{Difference: &inplace.Difference{}, Changed: native, Facts: inplace.Facts{RestartsAll: true}}, inplace.Verdict{Way: inplace.LeaveAlone, Reason: inplace.RestartRules}},
		"resources of a Pod that runs to completion": {inplace.Question{Difference: &inplace.Difference{}, Facts: inplace.Facts{CountsRestarts: true}}, inplace.Verdict{Way: inplace.Resize}},
		"a resize to be undone":                      {inplace.Question{SameHash: true, SameWithoutImage: true, Resizing: true}, inplace.Verdict{Way: inplace.Resize}},
		"a resize to be undone, and an image":        {inplace.Question{SameWithoutImage: true, Resizing: true, Changed: restarting}, inplace.Verdict{Way: inplace.Resize}},
		"an unknown revision":                        {inplace.Question{RevisionUnknown: true}, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.RevisionUnknown}},
		"an unreadable record":                       {inplace.Question{SameWithoutImage: true, RecordUnreadable: true}, inplace.Verdict{Way: inplace.LeaveAlone, Reason: inplace.RecordUnreadable}},
		"images":                                     {inplace.Question{SameWithoutImage: true, Changed: restarting}, inplace.Verdict{Way: inplace.Images}},
		"no image":                                   {inplace.Question{SameWithoutImage: true}, inplace.Verdict{Way: inplace.Images}},
		"a regular container on an old node":         {inplace.Question{SameWithoutImage: true, Changed: restarting, Node: inplace.Node{TooOld: true}}, inplace.Verdict{Way: inplace.Images}},
		"a native sidecar on an old node":            {inplace.Question{SameWithoutImage: true, Changed: native, Node: inplace.Node{TooOld: true}}, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.NodeTooOld}},
		"a plain init container on an old node":      {inplace.Question{SameWithoutImage: true, Changed: plain, Node: inplace.Node{TooOld: true}}, inplace.Verdict{Way: inplace.Images}},
		"a node that is not ready":                   {inplace.Question{SameWithoutImage: true, Changed: restarting, Node: inplace.Node{NotReady: true}}, inplace.Verdict{Way: inplace.LeaveAlone, Reason: inplace.NodeNotReady}},
		"a rule that restarts all":                   {inplace.Question{SameWithoutImage: true, Changed: native, Facts: inplace.Facts{RestartsAll: true}}, inplace.Verdict{Way: inplace.LeaveAlone, Reason: inplace.RestartRules}},
		"a rule that restarts all, no restart":       {inplace.Question{SameWithoutImage: true, Changed: plain, Facts: inplace.Facts{RestartsAll: true}}, inplace.Verdict{Way: inplace.Images}},
		"a Job that counts, of which nothing runs":   {inplace.Question{SameWithoutImage: true, Changed: plain, Facts: inplace.Facts{CountsRestarts: true}}, inplace.Verdict{Way: inplace.Images}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := inplace.Judge(tc.q); got != tc.want {
				t.Errorf("verdict %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestFactsOf(t *testing.T) {
	yes := true
	owned := func(kind string, controller *bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: controller}}
	}
	rule := func(action corev1.ContainerRestartRuleAction) []corev1.Container {
		return []corev1.Container{{Name: "a"}, {Name: "b", RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}, {Action: action}}}}
	}
	tests := map[string]struct {
		pod  corev1.Pod
		want inplace.Facts
	}{
		"OnFailure under a Job":       {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job", &yes)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure}}, inplace.Facts{CountsRestarts: true}},
		"OnFailure under another":     {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Workflow", &yes)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure}}, inplace.Facts{}},
		"OnFailure, a Job mentioned":  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job", nil)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure}}, inplace.Facts{}},
		"Never under a Job":           {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job", &yes)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}}, inplace.Facts{}},
		"a rule of a container":       {corev1.Pod{Spec: corev1.PodSpec{Containers: rule(corev1.ContainerRestartRuleActionRestartAllContainers)}}, inplace.Facts{RestartsAll: true}},
		"a rule of an init container": {corev1.Pod{Spec: corev1.PodSpec{InitContainers: rule(corev1.ContainerRestartRuleActionRestartAllContainers)}}, inplace.Facts{RestartsAll: true}},
		"other rules":                 {corev1.Pod{Spec: corev1.PodSpec{Containers: rule(corev1.ContainerRestartRuleActionRestart)}}, inplace.Facts{}},
		"a mirror Pod":                {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: ""}}}, inplace.Facts{Mirror: true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := inplace.FactsOf(&tc.pod); got != tc.want {
				t.Errorf("facts %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestTooOld(t *testing.T) {
	for kubelet, want := range map[string]bool{
		"v1.31.14": true, "v1.32.0": false, "v1.32.0-rc.1": false, "v1.30.2+k3s1": true, "v1.37.1-gke.5": false, "v2.0.0": false,
		"1.29": true, "": false, "unknown": false,
	} {
		if got := inplace.TooOld(kubelet); got != want {
			t.Errorf("TooOld(%q) = %v, want %v", kubelet, got, want)
		}
	}
}
