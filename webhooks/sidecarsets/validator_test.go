package sidecarsets_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// live is a fake API server. It has SidecarSets by name with their annotations,
// and the content of the whitelist.
type live struct {
	client.Reader
	sets      map[string]map[string]string
	whitelist string
	stored    []string // manifests of SidecarSets
	revisions []appsv1.ControllerRevision
	err       error
	reads     []string
}

func (l *live) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l.err != nil {
		return l.err
	}
	if list, ok := list.(*appsv1.ControllerRevisionList); ok {
		list.Items = l.revisions
	}
	return nil
}

// store returns a snapshot of the SidecarSets in stored.
func (l *live) store(context.Context) (*match.Snapshot, error) {
	if l.err != nil {
		return nil, l.err
	}
	var sidecarSets []*inject.Compiled
	for _, manifest := range l.stored {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
			return nil, err
		}
		if compiled, _ := inject.Compile(object); compiled != nil {
			sidecarSets = append(sidecarSets, compiled)
		}
	}
	return match.Build(sidecarSets, nil), nil
}

func (l *live) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	l.reads = append(l.reads, key.String())
	if l.err != nil {
		return l.err
	}
	switch object := object.(type) {
	case *metav1.PartialObjectMetadata:
		if annotations, ok := l.sets[key.Name]; ok && object.Kind == "SidecarSet" {
			object.Name, object.Annotations = key.Name, annotations
			return nil
		}
	case *corev1.ConfigMap:
		if l.whitelist != "" && key.String() == "ours/kruise-configuration" {
			object.Data = map[string]string{"SidecarSet_PatchPodMetadata_WhiteList": l.whitelist}
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func validator(reader *live) http.Handler {
	return sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: reader.store, Reader: reader, Namespace: "ours", ExcludedNamespaces: []string{"kube-system", "sidecarset-system"},
	})
}

const (
	canaryManifest = "{name: log, annotations: {apps.kruise.io/sidecarset-canary: \"true\", apps.kruise.io/sidecarset-base: base}}"
	patchMember    = "  patchPodMetadata: [{annotations: {example.com/a: b}, patchPolicy: Retain}]\n"
)

// defaulted returns the manifest after the mutating webhook, as the validating webhook gets it.
func defaulted(t *testing.T, manifest string) string {
	t.Helper()
	answer := fixtures.Review(t, sidecarsets.NewDefaulter(), sidecarSetReview(t, manifest, ""))
	if !answer.Allowed {
		t.Fatalf("refused: %v", answer.Result)
	}
	object := manifestObject(t, manifest)
	if answer.Patch != nil {
		object = fixtures.Patched(t, object, answer.Patch)
	}
	return string(fixtures.Encode(t, object))
}

// What both webhooks say about the SidecarSets in files: internal/fixtures/sidecarsets/README.md.
func TestSidecarSetsInFiles(t *testing.T) {
	fixtures.RunJudged(t, func(t *testing.T, c *fixtures.Judged) (said fixtures.Said) {
		reader := &live{whitelist: `{"rules":[{"allowedAnnotationKeyExprs":["."]}]}`, sets: map[string]map[string]string{}}
		set, err := fixtures.Hub(t, c.Manifest)
		if err == nil {
			reader.record(set.Set)
			reader.sets[appsv1beta1.BaseOfCanary(set.Set.Annotations)] = nil
		}
		old := ""
		for _, manifest := range c.Stored {
			stored := defaulted(t, string(fixtures.YAML(t, manifest)))
			other, err := fixtures.Hub(t, manifest)
			if err != nil {
				t.Fatal(err)
			}
			reader.stored = append(reader.stored, stored)
			if reader.sets[other.Set.Name] = other.Set.Annotations; hub.NameOf(c.Manifest) == other.Set.Name {
				old = stored
			}
		}
		manifest := string(fixtures.YAML(t, c.Manifest))
		if err == nil {
			manifest = defaulted(t, manifest)
		}
		answer := fixtures.Review(t, validator(reader), sidecarSetReview(t, manifest, old))
		if !answer.Allowed {
			if said.Refused = []string{answer.Result.Message}; answer.Result.Code == http.StatusUnprocessableEntity {
				said.Refused = nil
				for _, cause := range answer.Result.Details.Causes {
					said.Refused = append(said.Refused, cause.Field+": "+cause.Message)
				}
			}
		}
		said.Warned = answer.Warnings
		return said
	})
}

// record records the revision that a SidecarSet names.
func (l *live) record(set *appsv1beta1.SidecarSet) {
	if reference, names := revision.ReferenceOf(set.Spec.InjectionStrategy.Revision); names {
		l.revisions = []appsv1.ControllerRevision{{ObjectMeta: metav1.ObjectMeta{Name: reference.Name, Labels: map[string]string{
			appsv1beta1.LabelSidecarSetName: set.Name, appsv1beta1.LabelCustomVersion: reference.CustomVersion}}}}
	}
}

func TestARefusalNamesAllProblemsInOrder(t *testing.T) {
	manifest := strings.NewReplacer("{matchLabels: {app: web}}", "{}", "1.36", "1.36 ").Replace(betaManifest)
	answer := fixtures.Review(t, validator(&live{}), sidecarSetReview(t, defaulted(t, manifest), ""))
	const want = `SidecarSet.apps.kruise.io "log" is invalid: [spec.selector: Invalid value: {}: empty selector is not valid; add matchLabels or matchExpressions, ` +
		`spec.containers[0].image: Invalid value: "busybox:1.36 ": must not begin or end with white space; remove it]`
	if answer.Allowed || answer.Result.Code != http.StatusUnprocessableEntity || answer.Result.Reason != metav1.StatusReasonInvalid || answer.Result.Message != want {
		t.Errorf("got %+v, want 422 %s", answer.Result, want)
	}
}

// The time that libraries take to join problems grows with the square of their number.
func TestARefusalNamesAHundredProblemsAtMost(t *testing.T) {
	many := strings.Replace(betaManifest, "[{name", "["+strings.Repeat(`{image: " a"}, `, 150)+"{name", 1)
	answer := fixtures.Review(t, validator(&live{}), sidecarSetReview(t, defaulted(t, many), ""))
	if causes := answer.Result.Details.Causes; len(causes) != 101 || !strings.Contains(causes[100].Message, "has 50 more problems; correct these first") {
		t.Errorf("there are %d causes, the last is %v", len(causes), causes[len(causes)-1])
	}
}

// What the rules need to know is read live, and nothing else is.
func TestTheRulesAskForWhatTheyNeed(t *testing.T) {
	canary := strings.Replace(betaManifest, "{name: log}", canaryManifest, 1)
	other := strings.Replace(betaManifest, "{name: log}", "{name: other}", 1)
	recorded := func(owner string) live {
		return live{revisions: []appsv1.ControllerRevision{{ObjectMeta: metav1.ObjectMeta{Name: "log-1", Labels: map[string]string{"kruise.io/sidecarset-name": owner}}}}}
	}
	tests := map[string]struct {
		manifest string
		live     live
		allowed  bool // by default, by the flag
		reads    string
		refused  string
	}{
		"nothing":                           {manifest: betaManifest},
		"a base":                            {manifest: canary, live: live{sets: map[string]map[string]string{"base": nil}}, reads: "/base"},
		"a base that is none":               {manifest: canary, reads: "/base", refused: "create the base first"},
		"a base that is a canary":           {manifest: canary, live: live{sets: map[string]map[string]string{"base": {"apps.kruise.io/sidecarset-canary": "true", "apps.kruise.io/sidecarset-base": "root"}}}, reads: "/base", refused: "is itself a canary, of root"},
		"a whitelist":                       {manifest: betaManifest + patchMember, live: live{whitelist: `{"rules":[{"allowedAnnotationKeyExprs":["^example.com/"]}]}`}, reads: "ours/kruise-configuration"},
		"a whitelist that is none":          {manifest: betaManifest + patchMember, reads: "ours/kruise-configuration", refused: "add one to key SidecarSet_PatchPodMetadata_WhiteList of ConfigMap ours/kruise-configuration"},
		"a whitelist where the flag allows": {manifest: betaManifest + patchMember, allowed: true, reads: "ours/kruise-configuration"},
		"a whitelist against the flag":      {manifest: betaManifest + patchMember, allowed: true, live: live{whitelist: `{"rules":[{"allowedAnnotationKeyExprs":["^other/"]}]}`}, reads: "ours/kruise-configuration", refused: "no rule of the whitelist allows"},
		"T16: a revision of another one":    {manifest: betaManifest + "  injectionStrategy: {revision: {revisionName: log-1}}\n", live: recorded("other"), refused: "cannot find ControllerRevision"},
		"rule 15: a revision of none":       {manifest: betaManifest + "  injectionStrategy: {revision: {revisionName: log-1}}\n", refused: "cannot find ControllerRevision"},
		"its own revision":                  {manifest: betaManifest + "  injectionStrategy: {revision: {revisionName: log-1}}\n", live: recorded("log")},
		"one that it meets":                 {manifest: betaManifest, live: live{stored: []string{other}, sets: map[string]map[string]string{"other": nil}}, reads: "/other", refused: "is a container of SidecarSet other"},
		"those that it meets in no Pod": {manifest: betaManifest, live: live{stored: []string{
			betaManifest, strings.Replace(other, `"busybox:1.36"`, "5", 1), strings.Replace(other, "{matchLabels: {app: web}}", "null", 1), strings.Replace(other, "app: web", "app: db", 1),
		}}},
		"those that a long selector meets": {manifest: strings.Replace(betaManifest, "{matchLabels: {app: web}}", "{matchExpressions: [{key: app, operator: NotIn, values: ["+strings.Repeat("v, ", 20_000)+"v]}]}", 1),
			live: live{err: errors.New("it was asked")}, refused: "spec.selector: Forbidden: has "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			handler := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{Stored: tc.live.store, Reader: &tc.live, Namespace: "ours", PatchPodMetadataAllowed: tc.allowed})
			answer := fixtures.Review(t, handler, sidecarSetReview(t, defaulted(t, tc.manifest), ""))
			if answer.Allowed != (tc.refused == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, tc.refused) {
				t.Errorf("allowed is %v: %v", answer.Allowed, answer.Result)
			}
			if got := strings.Join(tc.live.reads, " "); got != tc.reads {
				t.Errorf("it read %q, want %q", got, tc.reads)
			}
		})
	}
}

// An update may keep the problems of the stored SidecarSet, so that it can be paused. It may
// not add problems, nor let old ones harm other Pods. Which problems are old says
// TestSidecarSetsInFiles.
func TestAnUpdateMayKeepWhatIsWrong(t *testing.T) {
	const (
		paused  = "  injectionStrategy: {paused: true}\n"
		missing = "  injectionStrategy: {revision: {revisionName: log-1}}\n"
		clash   = "is a container of SidecarSet other"
	)
	star := strings.Replace(betaManifest, "{name: log}", `{name: "*"}`, 1)
	tests := map[string]struct {
		old, manifest string
		refused       string // in the refusal; "" if the update is allowed
		kept          string // in a warning; "" if there is none
	}{
		"a clash, to pause":               {betaManifest, betaManifest + paused, "", clash},
		"a clash, to resume":              {betaManifest + paused, betaManifest, clash, ""},
		"a clash, to label":               {betaManifest, strings.Replace(betaManifest, "{name: log}", "{name: log, labels: {a: b}}", 1), "", clash},
		"a clash, and one more":           {betaManifest, betaManifest + "  volumes: [{name: v, emptyDir: {}}]\n", "is another volume of SidecarSet other", clash},
		"a clash that was resolved once":  {strings.Replace(betaManifest, "name: agent", "name: else", 1), betaManifest, clash, ""},
		"a clash, in other Pods":          {betaManifest, strings.Replace(betaManifest, "{matchLabels: {app: web}}", "{matchExpressions: [{key: app, operator: In, values: [web, db]}]}", 1), clash, ""},
		"a clash, in more namespaces":     {betaManifest + "  namespaceSelector: {matchLabels: {a: b}}\n", betaManifest, clash, ""},
		"a name that is stored nowhere":   {star, star, "metadata.name", ""},
		"a revision that is gone":         {betaManifest + missing, betaManifest + missing + "  revisionHistoryLimit: 3\n", "", "cannot find ControllerRevision"},
		"a revision that was never there": {betaManifest + missing, betaManifest + strings.Replace(missing, "log-1", "log-2", 1), "log-2", clash},
		"T32: what the whitelist forbids": {betaManifest + patchMember, betaManifest + patchMember + paused, "whitelist not found", clash},
		"a stored one that is too large":  {betaManifest + "  customVersion: " + strings.Repeat("v", 257<<10) + "\n", betaManifest, clash, ""},
		"the same in the older version":   {strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1), betaManifest + paused, "", clash},
		"a container that an update adds": {strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1), strings.Replace(betaManifest, "name: agent", "name: second", 1), "container second is not found", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			other := strings.Replace(betaManifest, "{name: log}", "{name: other}", 1) + "  volumes: [{name: v, hostPath: {path: /}}]\n"
			reader := &live{stored: []string{other}, sets: map[string]map[string]string{"other": nil}}
			answer := fixtures.Review(t, validator(reader), sidecarSetReview(t, defaulted(t, tc.manifest), tc.old))
			if answer.Allowed != (tc.refused == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, tc.refused) {
				t.Errorf("allowed is %v, with %v; want refused for %q", answer.Allowed, answer.Result, tc.refused)
			}
			already := slices.DeleteFunc(slices.Clone(answer.Warnings), func(warning string) bool { return !strings.Contains(warning, "has this problem already") })
			if told := strings.Join(already, "\n"); (told == "") != (tc.kept == "") || !strings.Contains(told, tc.kept) {
				t.Errorf("warnings %q, want %q", already, tc.kept)
			}
			if tc.kept != "" && !answer.Allowed && strings.Contains(answer.Result.Message, tc.kept) {
				t.Errorf("it is refused for what was wrong before, too: %s", answer.Result.Message)
			}
		})
	}
}

// The snapshot may still hold a SidecarSet that has just been deleted. So the webhook reads a
// SidecarSet live before it refuses another one because of it.
func TestADeletedSidecarSetInTheSnapshotRefusesNoOther(t *testing.T) {
	clashing := func(name string) string { return strings.Replace(betaManifest, "{name: log}", "{name: "+name+"}", 1) }
	tests := map[string]struct {
		stored []string
		named  string // in the refusal
	}{
		"both are gone": {},
		"one is gone":   {[]string{"beta"}, "beta"},
		"none is gone":  {[]string{"alpha", "beta"}, "alpha"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reader := &live{stored: []string{clashing("alpha"), clashing("beta")}, sets: map[string]map[string]string{}}
			for _, stored := range tc.stored {
				reader.sets[stored] = nil
			}
			answer := fixtures.Review(t, validator(reader), sidecarSetReview(t, defaulted(t, betaManifest), ""))
			if answer.Allowed != (tc.named == "") {
				t.Fatalf("allowed is %v: %v", answer.Allowed, answer.Result)
			}
			if len(reader.reads) != 2 {
				t.Errorf("it read %v, want both", reader.reads)
			}
			if !answer.Allowed && (!strings.Contains(answer.Result.Message, "SidecarSet "+tc.named) || len(answer.Result.Details.Causes) != len(tc.stored)) {
				t.Errorf("it says %s, want %v", answer.Result.Message, tc.stored)
			}
		})
	}
}

// An object that was stored while no replica checked it can still be repaired.
func TestSidecarSetValidatorLetsABrokenObjectBeRepaired(t *testing.T) {
	old := strings.Replace(betaManifest, `"busybox:1.36"`, "5", 1)
	answer := fixtures.Review(t, validator(&live{}), sidecarSetReview(t, defaulted(t, betaManifest), old))
	if !answer.Allowed {
		t.Errorf("refused: %v", answer.Result)
	}
}

// If a look-up fails, the message names what was looked up, and the code is 500.
func TestSidecarSetValidatorReportsFailedLookUps(t *testing.T) {
	boom, forbidden := errors.New("boom"), apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("no"))
	tests := map[string]struct {
		manifest string
		stored   live
		err      error
		want     string
	}{
		"of one that it meets": {betaManifest, live{stored: []string{strings.Replace(betaManifest, "{name: log}", "{name: other}", 1)}}, boom, "looking up SidecarSet other, try again: boom"},
		"of a base":            {strings.Replace(betaManifest, "{name: log}", canaryManifest, 1), live{}, boom, "looking up SidecarSet base, try again: boom"},
		"of the others":        {betaManifest, live{err: forbidden}, nil, "looking up the other SidecarSets, try again: things"},
		"of revisions":         {betaManifest + "  injectionStrategy: {revision: {customVersion: v1}}\n", live{}, boom, "looking up the ControllerRevisions of SidecarSet log, try again: boom"},
		"of a whitelist":       {betaManifest + patchMember, live{}, forbidden, "looking up ConfigMap ours/kruise-configuration, try again: things"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			handler := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{Stored: tc.stored.store, Reader: &live{err: tc.err}, Namespace: "ours"})
			answer := fixtures.Review(t, handler, sidecarSetReview(t, defaulted(t, tc.manifest), ""))
			if answer.Allowed || answer.Result.Code != http.StatusInternalServerError || !strings.Contains(answer.Result.Message, tc.want) {
				t.Errorf("got %v, want 500 %s", answer.Result, tc.want)
			}
		})
	}
}
