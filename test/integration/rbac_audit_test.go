package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/deploy"
)

// right is a verb on a resource, as a rule of a role grants it.
type right struct {
	role      string // "ClusterRole name", or "Role namespace/name"
	namespace string // where the right holds; "" is everywhere
	group     string
	resource  string // with the subresource
	verb      string
	names     string // the names to which the rule restricts it; "" is no restriction
}

func (r right) String() string {
	text := strings.TrimSuffix(fmt.Sprintf("%s: %s %s.%s", r.role, r.verb, r.resource, r.group), ".")
	if r.names != "" {
		text += " named " + r.names
	}
	return text
}

// request is what an audit log says about a request of one of the operator's ServiceAccounts
// for a resource.
type request struct {
	account, verb, group, resource, namespace, name string

	denied bool
	uri    string
}

// covers says whether the request was allowed by the right.
func (r right) covers(q request) bool {
	return r.verb == q.verb && r.group == q.group && r.resource == q.resource && (r.namespace == "" || r.namespace == q.namespace) &&
		(r.names == "" || q.name != "" && slices.Contains(strings.Split(r.names, " "), q.name))
}

// requestsOf reads an audit log and returns each kind of request of the operator once.
func requestsOf(t *testing.T, i *installation) []request {
	t.Helper()
	file, err := os.Open(auditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(i.logged, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	seen := map[request]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ObjectRef        *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			Annotations      map[string]string
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // a line that is being written
		}
		account, ours := strings.CutPrefix(event.User.Username, "system:serviceaccount:"+deploy.Namespace+":")
		if !ours || event.ObjectRef == nil {
			continue // every account may use discovery
		}
		o := event.ObjectRef
		q := request{
			account: account, verb: event.Verb, group: o.APIGroup, resource: o.Resource, namespace: o.Namespace, name: o.Name,
			denied: event.Annotations["authorization.k8s.io/decision"] != "allow",
		}
		if o.Subresource != "" {
			q.resource += "/" + o.Subresource
		}
		if q.denied {
			q.uri = event.RequestURI
		}
		seen[q] = true
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Keys(seen))
}

// rightsOf returns the rights that the operator's ServiceAccounts have been granted.
func rightsOf(t *testing.T) map[string][]right {
	t.Helper()
	granted := map[string][]right{}
	var everywhere rbacv1.ClusterRoleBindingList
	var bindings rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&everywhere, &bindings} {
		if err := api.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range everywhere.Items {
		bindings.Items = append(bindings.Items, rbacv1.RoleBinding{Subjects: b.Subjects, RoleRef: b.RoleRef})
	}
	for _, b := range bindings.Items {
		for _, subject := range b.Subjects {
			if subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == deploy.Namespace {
				granted[subject.Name] = append(granted[subject.Name], rightsIn(t, b.Namespace, b.RoleRef)...)
			}
		}
	}
	return granted
}

// rightsIn returns the rights in the role to which a binding in a namespace refers; "" is everywhere.
func rightsIn(t *testing.T, namespace string, ref rbacv1.RoleRef) (rights []right) {
	t.Helper()
	role := &unstructured.Unstructured{}
	role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(ref.Kind))
	key := client.ObjectKey{Name: ref.Name}
	if ref.Kind == "Role" {
		key.Namespace = namespace
	}
	if err := api.Get(t.Context(), key, role); err != nil {
		t.Fatal(err)
	}
	var read rbacv1.ClusterRole // a Role has the same rules
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(role.Object, &read); err != nil {
		t.Fatal(err)
	}
	name := ref.Kind + " " + key.String()
	for _, rule := range read.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights = append(rights, right{role: name, namespace: namespace, group: group, resource: resource, verb: verb, names: strings.Join(rule.ResourceNames, " ")})
				}
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			t.Errorf("%s allows URLs: %v", name, rule.NonResourceURLs)
		}
	}
	return rights
}

// rare are rights that are needed only in cases which the scenario cannot cause. The key is
// the resource, the verb and, where it matters, the first name. The value is the reason why
// the right is granted all the same.
var rare = map[string]string{
	"sidecarsets/finalizers update": "asked for by the admission plugin OwnerReferencesPermissionEnforcement, which few clusters run, when a ControllerRevision is created with blockOwnerDeletion; " +
		"a plugin's question is not audited",
	"controllerrevisions get":              "for a name that is taken: by a leader that lost its lease a moment ago, or by another content with the same hash",
	"events patch":                         "for an event that happens again within minutes",
	"namespaces list":                      "informers list where the API server has no WatchList, or refuses it",
	"mutatingwebhookconfigurations list":   "as for namespaces",
	"validatingwebhookconfigurations list": "as for namespaces",
	"customresourcedefinitions list":       "as for namespaces",
	"nodes list":                           "as for pods",
	"pods list":                            "the Pod watch begins with a list where the API server has no WatchList, or refuses it",
	"mutatingwebhookconfigurations get sidecarset-pods-0": "for entries that another client wrote at the same moment",
	"endpointslices list": "those of the operator's own Service: by a leader that serves no webhooks itself, to see whether a replica does",
}

// isRare says whether a right is one of rare, and by which key.
func (r right) isRare() (key string, yes bool) {
	text := strings.Join([]string{r.resource, r.verb, r.names, ""}, " ")
	for key := range rare {
		if strings.HasPrefix(text, key+" ") {
			return key, true
		}
	}
	return "", false
}

// unused returns the rights that no request needed, without the rare ones. It fails the test if no
// account has one of the rare rights.
func unused(t *testing.T, granted map[string][]right, requests []request) (idle []string) {
	t.Helper()
	used, rareOnes := map[right]bool{}, map[string]bool{}
	for account, rights := range granted {
		for _, r := range rights {
			key, isRare := r.isRare()
			rareOnes[key] = true
			used[r] = used[r] || isRare || slices.ContainsFunc(requests, func(q request) bool { return q.account == account && !q.denied && r.covers(q) })
		}
	}
	for r, isUsed := range used {
		if !isUsed {
			idle = append(idle, r.String())
		}
	}
	for key := range rare {
		if !rareOnes[key] {
			t.Errorf("no account may %q: take it off the list of rare rights", key)
		}
	}
	slices.Sort(idle)
	return idle
}
