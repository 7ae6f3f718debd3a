package requester_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/requester"
)

// decode reads the spec of a SidecarSet named log.
func decode(t *testing.T, spec string) (object map[string]any, set *appsv1beta1.SidecarSet) {
	t.Helper()
	manifest := []byte("metadata: {name: log}\nspec:\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
	set = &appsv1beta1.SidecarSet{}
	if err := yaml.Unmarshal(manifest, &object); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(manifest, set); err != nil {
		t.Fatal(err)
	}
	return object, set
}

// namespaces of the tests' cluster.
var namespaces = map[string]labels.Set{
	"team-a": {"team": "a"}, "team-b": {"team": "b"}, "team-b2": {"team": "b"}, "kube-system": {"team": "b"},
}

func cluster() requester.Cluster {
	return requester.Cluster{Excluded: []string{"kube-system"}, Select: func(selector labels.Selector) []string {
		var found []string
		for name, set := range namespaces {
			if selector.Matches(set) {
				found = append(found, name)
			}
		}
		return found
	}}
}

// judge asks questions until it is known which rights a user with the listed rights lacks. It
// returns the questions as well.
func judge(t *testing.T, spec string, rights ...string) (asked, missing []string) {
	t.Helper()
	object, set := decode(t, spec)
	return ask(t, requester.NewDemand(object, set, cluster()), rights)
}

func ask(t *testing.T, demand requester.Demand, rights []string) (asked, missing []string) {
	t.Helper()
	answers := map[requester.Question]bool{}
	for range 5 {
		next := demand.Next(answers)
		if len(next) == 0 {
			return asked, demand.Missing(answers)
		}
		for _, q := range next {
			resource := q.Resource
			text := strings.TrimSpace(q.Verb + " " + resource + " " + q.Namespace)
			asked = append(asked, text)
			answers[q] = slices.Contains(rights, text)
		}
	}
	t.Fatalf("it goes on asking: %v", asked)
	return nil, nil
}

const (
	everywhere = "may not create Pods in all namespaces, and spec.namespaceSelector does not say which namespaces"
	agent      = "containers:\n- {name: agent, image: a}\n"
)

func TestInjectingTakesTheRightToCreatePods(t *testing.T) {
	tests := map[string]struct {
		spec    string
		rights  []string
		asked   []string
		missing []string // beginnings
	}{
		"who may create Pods everywhere, without another question": {
			spec: agent, rights: []string{"create pods"}, asked: []string{"create pods"},
		},
		"no other user, if all namespaces are selected": {
			spec: agent, rights: []string{"create pods team-a"}, asked: []string{"create pods"}, missing: []string{everywhere},
		},
		"no other user, if an empty selector selects all": {
			spec: agent + "namespaceSelector: {}", asked: []string{"create pods"}, missing: []string{everywhere},
		},
		"no other user, if namespaces are only left out": {
			spec:  agent + "namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [a]}]}",
			asked: []string{"create pods"}, missing: []string{everywhere},
		},
		"who may create Pods in the namespace that is named": {
			spec:   agent + "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team-a}}",
			rights: []string{"create pods team-a"}, asked: []string{"create pods", "create pods team-a"},
		},
		"in a namespace that does not exist yet as well": {
			spec:   agent + "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: later}}",
			rights: []string{"create pods team-a"}, asked: []string{"create pods", "create pods later"},
			missing: []string{"may not create Pods in later, where this SidecarSet injects"},
		},
		"whatever labels the named namespaces have now": {
			spec:   agent + "namespaceSelector: {matchLabels: {team: none}, matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [team-a, team-b]}]}",
			rights: []string{"create pods team-a"}, asked: []string{"create pods", "create pods team-a", "create pods team-b"},
			missing: []string{"may not create Pods in team-b, "},
		},
		"not where the selector leaves a name out again": {
			spec:   agent + "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [team-a, team-b]}, {key: kubernetes.io/metadata.name, operator: NotIn, values: [team-b]}]}",
			rights: []string{"create pods team-a"}, asked: []string{"create pods", "create pods team-a"},
		},
		"any user, where nothing is ever injected": {
			spec: agent + "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}",
		},
		"in all namespaces with the label but excluded ones": {
			spec:   agent + "namespaceSelector: {matchLabels: {team: b}}",
			rights: []string{"create pods team-b"}, asked: []string{"create pods", "create pods team-b", "create pods team-b2"},
			missing: []string{"may not create Pods in team-b2, "},
		},
		"everywhere, as long as no namespace has the label": {
			spec:   agent + "namespaceSelector: {matchLabels: {team: c}}",
			rights: []string{"create pods team-a"}, asked: []string{"create pods"},
			missing: []string{"may not create Pods in all namespaces, and spec.namespaceSelector selects no namespace yet"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			asked, missing := judge(t, tc.spec, tc.rights...)
			if diff := cmp.Diff(tc.asked, asked); diff != "" {
				t.Errorf("questions (-want +got):\n%s", diff)
			}
			compareBeginnings(t, tc.missing, missing)
		})
	}
}

func compareBeginnings(t *testing.T, want, got []string) {
	t.Helper()
	same := slices.EqualFunc(want, got, func(want, got string) bool { return strings.HasPrefix(got, want) })
	if !same {
		t.Errorf("missing %q, want %q", got, want)
	}
}

func TestManyNamespacesTakeTheRightEverywhere(t *testing.T) {
	names := make([]string, requester.MaxNamespaces+1)
	for i := range names {
		names[i] = fmt.Sprintf("n-%d", i)
	}
	spec := agent + "namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [" + strings.Join(names, ", ") + "]}]}"
	asked, missing := judge(t, spec)
	if diff := cmp.Diff([]string{"create pods"}, asked); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	compareBeginnings(t, []string{"may not create Pods in all namespaces, and spec.namespaceSelector selects 51 namespaces"}, missing)
}

func TestPrivilegedContainersTakeTheVerbInjectPrivileged(t *testing.T) {
	spec := "containers: [{name: agent, image: a, securityContext: {privileged: true}}]"
	tests := map[string]struct {
		rights  []string
		missing []string
	}{
		"beside the right to create Pods": {[]string{"create pods", "inject-privileged sidecarsets"}, nil},
		"without it": {[]string{"create pods"}, []string{
			"may not use spec.containers[0].securityContext.privileged: remove it, or have the verb inject-privileged on sidecarsets.apps.kruise.io granted",
		}},
		"and does not replace it": {[]string{"inject-privileged sidecarsets"}, []string{everywhere}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			asked, missing := judge(t, spec, tc.rights...)
			if diff := cmp.Diff([]string{"inject-privileged sidecarsets", "create pods"}, asked); diff != "" {
				t.Errorf("questions (-want +got):\n%s", diff)
			}
			compareBeginnings(t, tc.missing, missing)
		})
	}
}

// A revision that a SidecarSet names may restore sidecars that were removed from the SidecarSet.
func TestAPrivilegedRevisionTakesTheVerbInjectPrivileged(t *testing.T) {
	object, set := decode(t, agent+"injectionStrategy: {revision: {revisionName: log-1}}\n")
	privileged, _ := decode(t, "containers: [{name: agent, image: a, securityContext: {privileged: true}}]")
	tests := map[string]struct {
		recorded map[string]any
		missing  []string
	}{
		"where it is privileged": {privileged, []string{"may not use spec.containers[0].securityContext.privileged of revision log-1: "}},
		"not where it is not":    {object, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			demand := requester.NewDemand(object, set, cluster()).WithRevision("log-1", tc.recorded)
			answers := map[requester.Question]bool{}
			for _, question := range demand.Next(answers) {
				answers[question] = question.Verb == "create"
			}
			compareBeginnings(t, tc.missing, demand.Missing(answers))
		})
	}
}

func TestChangedIsAboutWhatIsInjectedAndWhere(t *testing.T) {
	const old = "selector: {matchLabels: {app: web}}\ncontainers: [{name: agent, image: a}]\n"
	tests := map[string]struct {
		spec string
		want bool
	}{
		"nothing":                    {old, false},
		"how Pods follow":            {old + "updateStrategy: {type: NotUpdate, paused: true, partition: 10%, selector: {matchLabels: {a: b}}}\nrevisionHistoryLimit: 3", false},
		"a version":                  {old + "customVersion: v1", false},
		"an image":                   {strings.Replace(old, "image: a", "image: b", 1), true},
		"an unknown member":          {strings.Replace(old, "image: a", "image: a, invented: {a: 1}", 1), true},
		"the selector":               {strings.Replace(old, "web", "db", 1), true},
		"the namespaces":             {old + "namespaceSelector: {matchLabels: {team: a}}", true},
		"another revision to inject": {old + "injectionStrategy: {paused: true, revision: {revisionName: log-1}}", true},
		"annotations for Pods":       {old + "patchPodMetadata: [{annotations: {a: b}}]", true},
	}
	before, _ := decode(t, old)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := decode(t, tc.spec)
			expectChanged(t, object, before, tc.want)
			expectChanged(t, before, object, tc.want)
		})
	}
}

func expectChanged(t *testing.T, object, old map[string]any, want bool) {
	t.Helper()
	if got := requester.Changed(object, old); got != want {
		t.Errorf("Changed is %v, want %v, from %v to %v", got, want, old, object)
	}
}

// If a revision is named, more of the spec decides what a Pod gets.
func TestChangedIsAboutWhatChoosesTheRevision(t *testing.T) {
	const old = "injectionStrategy: {revision: {customVersion: v1, policy: Partial}}\nupdateStrategy: {type: NotUpdate, partition: 0%}\ncustomVersion: v2\n" + agent
	tests := map[string]struct {
		old, new string
		want     bool
	}{
		"the partition":       {"partition: 0%", "partition: 100%", true},
		"the selector":        {"partition: 0%", "partition: 0%, selector: {matchLabels: {a: b}}", true},
		"pausing updates":     {"partition: 0%", "partition: 0%, paused: true", true},
		"the custom version":  {"customVersion: v2", "customVersion: v1", true},
		"how many are absent": {"partition: 0%", "partition: 0%, maxUnavailable: 3", false},
	}
	before, _ := decode(t, old)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := decode(t, strings.Replace(old, tc.old, tc.new, 1))
			expectChanged(t, object, before, tc.want)
			expectChanged(t, before, object, tc.want)
		})
	}
}

// Every user who may write SidecarSets has to be free to pause one. What was
// paused may be more than the user who resumes it could inject.
func TestResumingTakesRightsAndPausingDoesNot(t *testing.T) {
	running, _ := decode(t, agent)
	paused, _ := decode(t, agent+"injectionStrategy: {paused: true}\n")
	expectChanged(t, paused, running, false)
	expectChanged(t, running, paused, true)
	expectChanged(t, paused, paused, false)
}

func TestChangedIsAboutMetadataThatDecides(t *testing.T) {
	const canary = `{apps.kruise.io/sidecarset-canary: "true", apps.kruise.io/sidecarset-base: mandatory}`
	tests := map[string]struct {
		old, metadata string
		want          bool
	}{
		"any label or annotation":         {`{}`, `{labels: {a: b}, annotations: {sidecarset.io/failure-policy: Ignore, c: d}}`, false},
		"a canary":                        {`{annotations: {apps.kruise.io/sidecarset-base: mandatory}}`, `{annotations: ` + canary + `}`, true},
		"one of another base":             {`{annotations: ` + canary + `}`, `{annotations: ` + strings.Replace(canary, "mandatory", "other", 1) + `}`, true},
		"a base without canary":           {`{}`, `{annotations: {apps.kruise.io/sidecarset-base: mandatory}}`, false},
		"believing nothing that Pods say": {`{}`, `{annotations: {sidecarset.io/enforce: "true"}}`, true},
		"the label that revisions inherit, where one is named": {`{}`, `{labels: {apps.kruise.io/sidecarset-custom-version: v1}}`, true},
	}
	const spec = "injectionStrategy: {revision: {customVersion: v1}}\n" + agent
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before, _ := decode(t, spec)
			object, _ := decode(t, spec)
			before["metadata"], object["metadata"] = metadata(t, tc.old), metadata(t, tc.metadata)
			expectChanged(t, object, before, tc.want)
			expectChanged(t, before, object, tc.want)
		})
	}
}

func metadata(t *testing.T, text string) (m map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// A canary switches its base off in the Pods that both select.
func TestACanaryTakesTheRightToUpdateItsBase(t *testing.T) {
	const update = "may not update SidecarSet mandatory, which this canary replaces in Pods: name a base in annotation apps.kruise.io/sidecarset-base that the user may update"
	tests := map[string]struct {
		canary  string
		base    bool
		missing []string
	}{
		"a user who lacks it":  {"true", false, []string{update}},
		"a user who has it":    {"true", true, nil},
		"not without a canary": {"True", false, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, set := decode(t, agent)
			set.Annotations = map[string]string{appsv1beta1.AnnotationCanary: tc.canary, appsv1beta1.AnnotationBase: "mandatory"}
			demand := requester.NewDemand(object, set, cluster())
			answers := map[requester.Question]bool{}
			for _, q := range demand.Next(answers) {
				answers[q] = q.Resource == "pods" || tc.base && q == requester.Question{Verb: "update", Group: "apps.kruise.io", Resource: "sidecarsets", Name: "mandatory"}
			}
			if next := demand.Next(answers); len(next) > 0 {
				t.Errorf("it goes on asking: %v", next)
			}
			compareBeginnings(t, tc.missing, demand.Missing(answers))
		})
	}
}
