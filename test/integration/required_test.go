package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// guarded is a client of an API server with config/required and SidecarSets, and without an operator: Pods
// stay as they are submitted.
type guarded struct {
	client.Client
	warnings *[]string
	objects  int
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	for _, what := range [][]string{{"-f", "config/crd/bases"}, {"-k", "config/required"}} {
		what[1] = filepath.Join(deploy.Root(), what[1])
		testkit.Kubectl(t, cluster, "", append([]string{"apply", "--server-side"}, what...)...)
		t.Cleanup(func() {
			if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", append([]string{"delete"}, what...)...); err != nil {
				t.Error(err)
			}
		})
	}
	g := &guarded{warnings: &[]string{}}
	options := rest.CopyConfig(cluster.Config())
	options.QPS, options.WarningHandler = -1, g
	var err error
	if g.Client, err = testkit.NewClientFor(options); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "SidecarSets", func(ctx context.Context) error {
		return g.List(ctx, &appsv1beta1.SidecarSetList{})
	})
	g.awaitObserved(t)
	return g
}

// HandleWarningHeader keeps the warnings of the last request.
func (g *guarded) HandleWarningHeader(_ int, _, text string) { *g.warnings = append(*g.warnings, text) }

// store creates a SidecarSet with a value of the label, as an API server serves it.
func (g *guarded) store(t *testing.T, object map[string]any, required string) *unstructured.Unstructured {
	t.Helper()
	set := (&unstructured.Unstructured{Object: object}).DeepCopy()
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetResourceVersion("")
	set.SetUID("")
	set.SetLabels(map[string]string{appsv1beta1.LabelRequired: required})
	unstructured.RemoveNestedField(set.Object, "status")
	if err := g.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	return set
}

func (g *guarded) remove(t *testing.T, sets ...*unstructured.Unstructured) {
	t.Helper()
	for _, set := range sets {
		if err := g.Delete(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitObserved waits until the policy uses all SidecarSets as they are now: an API server learns of
// changes in their order.
func (g *guarded) awaitObserved(t *testing.T) {
	t.Helper()
	g.objects++
	name := fmt.Sprint("last-", g.objects)
	last := g.store(t, fixtures.SidecarSet(name).Select("last", name).Container("last", "example.com/last:v1").Map(), "warn")
	await.Eventually(t, "the policy", func(ctx context.Context) error {
		if named, err := g.named(ctx, fixtures.Pod("p").Namespace("default").Label("last", name).Container("app", "example.com/app:v1").Obj()); err != nil || !slices.Contains(named, name) {
			return fmt.Errorf("SidecarSets %v are named, %w", named, err)
		}
		return nil
	})
	g.remove(t, last)
}

var namedSet = regexp.MustCompile(`lacks sidecars of SidecarSet ([a-z0-9.-]+), `)

// named creates a Pod under dry-run, and returns the SidecarSets that the policy names.
func (g *guarded) named(ctx context.Context, object map[string]any) (names []string, err error) {
	pod := (&unstructured.Unstructured{Object: object}).DeepCopy()
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod.SetUID("")
	pod.SetResourceVersion("")
	*g.warnings = nil
	err = g.Create(ctx, pod, client.DryRunAll)
	for _, text := range *g.warnings {
		if found := namedSet.FindStringSubmatch(text); found != nil {
			names = append(names, found[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// compare fails the test unless the policy names, of these SidecarSets, the wanted ones.
func (g *guarded) compare(t *testing.T, what string, pod map[string]any, of, want []string) {
	t.Helper()
	got, err := g.named(t.Context(), pod)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	got = slices.DeleteFunc(got, func(name string) bool { return !slices.Contains(of, name) })
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("%s: the policy names %v, want %v", what, got, want)
	}
}

// The policy refuses a Pod exactly if the operator would have injected it: golden cases, and random
// pairs of SidecarSets and Pods. It never refuses what the operator has injected.
func policyJudgesAsTheEngine(t *testing.T) {
	g := newGuarded(t)
	t.Run("golden", g.goldenPairs)
	t.Run("random", g.randomPairs)
	t.Run("cases", g.cases)
}

// notStored are the golden cases whose SidecarSets validation refuses.
var notStored = []string{
	"canary-of-a-canary",
	"mount-of-a-volume-that-another-sidecarset-brings",
	"mount-of-a-volume-that-is-not-declared",
	"patch-pod-metadata-in-the-order-of-names",
	"patch-pod-metadata-leaves-our-own-annotations",
	"paused-sidecarset-takes-no-name",
	"refused-hot-upgrade-whose-name-a-sidecar-has",
	"refused-hot-upgrade-whose-names-are-too-long",
	"refused-hot-upgrade-without-an-empty-image",
	"refused-name-that-one-sidecarset-has-twice",
	"refused-recorded-revision-that-is-not-there",
	"resources-policy-with-a-malformed-literal",
	"sidecarset-without-containers",
	"sidecarset-without-containers-beside-another",
	"transfer-env-from-a-field-that-names-no-container",
	"volume-named-by-two-sidecarsets",
}

func (g *guarded) goldenPairs(t *testing.T) {
	pairs, injected := 0, 0
	for _, c := range fixtures.Cases(t) {
		if slices.Contains(notStored, c.Name) || c.Want(t).Refused != "" {
			continue
		}
		plan, view := computed(t, c.Snapshot(t), c.Namespace, c.Pod)
		for name, set := range c.Namespaces {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
			if err := g.Create(t.Context(), namespace); client.IgnoreAlreadyExists(err) != nil {
				t.Fatal(err)
			}
		}
		var sets []*unstructured.Unstructured
		var names []string
		for _, object := range c.SidecarSets {
			sets = append(sets, g.store(t, object, "warn"))
			names = append(names, sets[len(sets)-1].GetName())
		}
		g.awaitObserved(t)
		inNamespace := func(pod map[string]any) map[string]any {
			u := (&unstructured.Unstructured{Object: pod}).DeepCopy()
			u.SetNamespace(c.Namespace)
			u.SetOwnerReferences(nil)
			unstructured.RemoveNestedField(u.Object, "spec", "priorityClassName")
			return u.Object
		}
		brought := slices.ContainsFunc(slices.Concat(view.Containers, view.InitContainers), func(v inject.ContainerView) bool { return v.Injected })
		if !brought && view.Annotations[appsv1beta1.AnnotationHash] == "" {
			want := slices.Clone(plan.Injected)
			for _, skip := range plan.Skipped { // the canary's containers are the base's, too
				if skip.Reason == inject.SkipCanary {
					want = append(want, skip.SidecarSet)
				}
			}
			pairs += len(sets)
			g.compare(t, c.Name+", as submitted", inNamespace(c.Pod), names, want)
		}
		injected++
		g.compare(t, c.Name+", injected", inNamespace(fixtures.Apply(t, plan, c.Pod)), names, nil)
		g.remove(t, sets...)
	}
	testkit.Report(t, "%d pairs as submitted, %d injected Pods", pairs, injected)
}

// computed is what the engine does with a Pod.
func computed(t *testing.T, snapshot *match.Snapshot, namespace string, pod map[string]any) (inject.Plan, inject.PodView) {
	t.Helper()
	view := fixtures.View(t, pod)
	selection, err := snapshot.Select(namespace, view.Labels, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := inject.Compute(inject.Input{Pod: view, Now: fixtures.Now, Candidates: snapshot.Candidates(selection.SidecarSets, func() float64 { return 0.5 })})
	if err != nil {
		t.Fatal(err)
	}
	return plan, view
}

// chance makes random selectors and labels.
type chance struct {
	*rand.Rand
	values []string
}

var labelKeys = []string{"app", "tier", "example.com/team", "x.y.z/a_b.c"}

func (c chance) pick(list []string) string { return list[c.IntN(len(list))] }

func (c chance) labels() map[string]string {
	all := map[string]string{}
	for _, key := range labelKeys {
		if c.IntN(2) == 0 {
			all[key] = c.pick(c.values[:4])
		}
	}
	return all
}

func (c chance) selector(keys []string) object {
	equal, expressions := object{}, []any{}
	for range 1 + c.IntN(3) {
		if c.IntN(2) == 0 {
			equal[c.pick(keys)] = c.pick(c.values)
			continue
		}
		e := object{"key": c.pick(keys), "operator": c.pick([]string{"In", "NotIn", "Exists", "DoesNotExist"})}
		if strings.HasSuffix(e["operator"].(string), "In") {
			e["values"] = []any{c.pick(c.values), c.pick(c.values)}
		}
		expressions = append(expressions, e)
	}
	return object{"matchLabels": equal, "matchExpressions": expressions}
}

func (c chance) sidecarSet(name string) object {
	b := fixtures.SidecarSet(name).Spec("selector", c.selector(labelKeys))
	if c.IntN(3) > 0 {
		b.Spec("namespaceSelector", c.selector(append([]string{corev1.LabelMetadataName}, labelKeys...)))
	}
	kind := c.IntN(5)
	if kind == 0 || kind == 4 {
		b.Container(name+"-c", "example.com/c:v1")
	}
	if kind == 1 {
		b.Container(name+"-h", "example.com/h:v1").With("upgradeStrategy", object{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "example.com/empty:v1"})
	}
	if kind == 2 || kind == 4 {
		b.Native(name+"-n", "example.com/n:v1")
	}
	if kind == 3 {
		b.InitContainer(name+"-i", "example.com/i:v1")
	}
	if c.IntN(6) == 0 {
		b.Paused()
	}
	return b.Map()
}

func (g *guarded) randomPairs(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(52, 0)), []string{"a", "b", "c", "", "random-0", "random-1"}}
	namespaces := map[string]labels.Set{}
	for i := range 6 {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("random-", i), Labels: c.labels()}}
		if err := g.Create(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
		namespaces[namespace.Name] = namespace.Labels
	}
	pairs, selected := 0, 0
	for batch := range testkit.Scaled(2, 20) {
		var programs []*inject.Compiled
		var sets []*unstructured.Unstructured
		var names []string
		for i := range 30 {
			set := g.store(t, c.sidecarSet(fmt.Sprintf("random-%d-%d", batch, i)), "warn")
			program, err := inject.Compile(set.Object)
			if err != nil {
				t.Fatal(err)
			}
			sets, names, programs = append(sets, set), append(names, set.GetName()), append(programs, program)
		}
		g.awaitObserved(t)
		snapshot := match.Build(programs, namespaces)
		for range 30 {
			namespace := c.pick(slices.Sorted(maps.Keys(namespaces)))
			builder := fixtures.Pod("p").Namespace(namespace).Container("app", "example.com/app:v1")
			for key, value := range c.labels() {
				builder.Label(key, value)
			}
			pod := builder.Obj()
			plan, _ := computed(t, snapshot, namespace, pod)
			pairs, selected = pairs+len(sets), selected+len(plan.Injected)
			g.compare(t, fmt.Sprintf("Pod %v in %s %v", pod["metadata"], namespace, namespaces[namespace]), pod, names, slices.Clone(plan.Injected))
			if len(plan.Injected) > 0 {
				g.compare(t, "an injected Pod", fixtures.Apply(t, plan, pod), names, nil)
			}
		}
		g.remove(t, sets...)
	}
	testkit.Report(t, "%d pairs, %d of them selected", pairs, selected)
	if selected < 50 {
		t.Errorf("%d pairs are selected: the test is about little", selected)
	}
}

// cases are what neither golden nor random pairs have.
func (g *guarded) cases(t *testing.T) {
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := g.Get(t.Context(), client.ObjectKey{Name: "sidecarset-required"}, policy); err != nil {
		t.Fatal(err)
	}
	if checked := policy.Status.TypeChecking; checked != nil && len(checked.ExpressionWarnings) > 0 {
		t.Errorf("the API server says about the expressions: %v", checked.ExpressionWarnings)
	}
	const record = `{"earlier":{"hash":"x"}}`
	sidecar := func(b *fixtures.SidecarSetBuilder) *fixtures.SidecarSetBuilder {
		return b.Container("side", "example.com/side:v1")
	}
	all := sidecar(fixtures.SidecarSet("all")).InNamespace("all").Spec("selector", object{"matchExpressions": []any{object{"key": "sidecarset.io/none", "operator": "DoesNotExist"}}})
	stable := sidecar(fixtures.SidecarSet("earlier")).Select("app", "earlier").Annotation("sidecarset.io/new-pods", "Stable")
	must := sidecar(fixtures.SidecarSet("must")).Select("app", "must")
	for _, b := range []*fixtures.SidecarSetBuilder{all, stable, must} {
		g.store(t, b.Map(), "true")
	}
	if err := g.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "all"}}); err != nil {
		t.Fatal(err)
	}
	g.awaitObserved(t)
	pod := func(namespace string) *fixtures.PodBuilder {
		return fixtures.Pod("p").Namespace(namespace).Container("app", "example.com/app:v1")
	}
	for name, tc := range map[string]struct {
		pod *fixtures.PodBuilder
		by  string // the SidecarSet that the refusal names
	}{
		"selected":                         {pod("default").Label("app", "must"), "must"},
		"with its sidecar":                 {pod("default").Label("app", "must").Container("side", "example.com/side:v1"), ""},
		"another":                          {pod("default").Label("app", "other"), ""},
		"an excluded namespace":            {pod(metav1.NamespaceSystem).Label("app", "must"), ""},
		"a static Pod":                     {pod("default").Label("app", "must").Annotation(corev1.MirrorPodAnnotationKey, "x").Spec("nodeName", "node"), ""},
		"any Pod of a namespace":           {pod("all"), "all"},
		"that leaves the selector":         {pod("all").Label("sidecarset.io/none", ""), "all"},
		"with the record of a stable set":  {pod("default").Label("app", "earlier").Annotation(appsv1beta1.AnnotationHash, record), ""},
		"without record":                   {pod("default").Label("app", "earlier"), "earlier"},
		"with the record of a current set": {pod("default").Label("app", "must").Annotation(appsv1beta1.AnnotationHash, strings.Replace(record, "earlier", "must", 1)), "must"},
	} {
		t.Run(name, func(t *testing.T) {
			switch _, err := g.named(t.Context(), tc.pod.Obj()); {
			case tc.by == "" && err != nil:
				t.Error(err)
			case tc.by != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "SidecarSet "+tc.by+", ") || !strings.Contains(err.Error(), "kubectl get sidecarset "+tc.by)):
				t.Errorf("the Pod is answered with %v, want a refusal that names SidecarSet %s and the remedy", err, tc.by)
			}
		})
	}
}
