package integration

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stranger"
	"github.com/sidecarset/operator/test/testkit"
)

func TestEveryReplicaServesACertificateOfTheOneCA(t *testing.T) {
	operator.NeedReplicas(t)
	for _, replica := range replicas {
		response, err := replica.Trusting(t, "").Get("https://" + deploy.ServerName + "/")
		if err != nil {
			t.Errorf("replica %d: %v", replica.Number, err)
			continue
		}
		response.Body.Close()
		if got := response.TLS.Version; got != tls.VersionTLS13 {
			t.Errorf("replica %d speaks %s", replica.Number, tls.VersionName(got))
		}
	}
}

// ask posts body to a replica's path when the replica asks for the body. If the client did not
// wait, a replica that refuses the body unread would close the connection during the request.
func ask(t *testing.T, path, contentType string, body io.Reader) (int, string) {
	t.Helper()
	httpClient := replicas[0].Trusting(t, "")
	httpClient.Transport.(*http.Transport).ExpectContinueTimeout = await.Patience
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+deploy.ServerName+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Expect", "100-continue")
	response, err := httpClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

func TestBadRequestsGetClearAnswers(t *testing.T) {
	good := stranger.PodReview("default", `{"metadata":{"name":"p"},"spec":{"containers":[]}}`)
	tests := map[string]struct {
		path, contentType, body string
		status                  int
		want                    string
	}{
		"malformed":         {"/pods", "application/json", `{"kind": "AdmissionReview", `, 400, "AdmissionReview"},
		"empty":             {"/pods", "application/json", ``, 400, ""},
		"another kind":      {"/pods", "application/json", `{"apiVersion":"v1","kind":"Pod"}`, 400, "AdmissionReview"},
		"another version":   {"/pods", "application/json", strings.Replace(good, "admission.k8s.io/v1", "admission.k8s.io/v2", 1), 400, "admission.k8s.io/v1"},
		"no namespace":      {"/pods", "application/json", strings.Replace(good, `"namespace":"default",`, "", 1), 400, "namespace"},
		"oversized":         {"/pods", "application/json", strings.Repeat(" ", 8<<20), 413, ""},
		"another type":      {"/pods", "text/plain", good, 415, "application/json"},
		"unknown path":      {"/nowhere", "application/json", good, 404, ""},
		"wrong conversion":  {"/convert", "application/json", good, 400, "ConversionReview"},
		"broken conversion": {"/convert", "application/json", `[]`, 400, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			status, answer := ask(t, tc.path, tc.contentType, strings.NewReader(tc.body))
			if status != tc.status && !deniedWith(answer, tc.status) {
				t.Errorf("status %d, want %d: %s", status, tc.status, answer)
			}
			if !strings.Contains(answer, tc.want) {
				t.Errorf("the answer does not say %q: %s", tc.want, answer)
			}
		})
	}
	if status, answer := ask(t, "/pods", "application/json", strings.NewReader(good)); status != 200 || !strings.Contains(answer, `"allowed":true`) {
		t.Errorf("after all that a good request got %d: %s", status, answer)
	}
}

// deniedWith reports whether the answer is an AdmissionReview that denies with
// the code.
func deniedWith(answer string, code int) bool {
	var r admissionv1.AdmissionReview
	return json.Unmarshal([]byte(answer), &r) == nil && r.Response != nil && !r.Response.Allowed &&
		r.Response.Result != nil && r.Response.Result.Code == int32(code)
}

// Neither the API server nor the operator knows these members. The operator keeps those of the
// Pod as they are, and its patch contains that of the sidecar.
func TestUnknownMembersOfPodsAndSidecarsAreKept(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers: [{name: side, image: "example.com/side:v1", inventedField: {deep: [1, {er: true}]}}]
`)
	awaitInjected(t, set, namespace, "app=web")
	object := `{"inventedTop":1,"metadata":{"name":"p","labels":{"app":"web"},"inventedMeta":{}},"spec":{"inventedSpec":[1],"containers":[{"name":"app","image":"a","inventedContainer":"x"}]}}`
	status, answer := ask(t, "/pods", "application/json", strings.NewReader(stranger.PodReview(namespace, object)))
	var r admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(answer), &r); err != nil || status != 200 || r.Response == nil || !r.Response.Allowed {
		t.Fatalf("%d %s: %v", status, answer, err)
	}
	var operations []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal(r.Response.Patch, &operations); err != nil {
		t.Fatalf("patch %s: %v", base64.StdEncoding.EncodeToString(r.Response.Patch), err)
	}
	found := false
	for _, o := range operations {
		if o.Op != "add" {
			t.Errorf("operation %s %s: a first injection only adds", o.Op, o.Path)
		}
		found = found || o.Path == "/spec/containers/0" && strings.Contains(string(o.Value), `"inventedField":{"deep":[1,{"er":true}]}`)
		if strings.Contains(string(o.Value), "inventedContainer") || o.Path == "/spec/containers" {
			t.Errorf("the user's container is rewritten: %s %s", o.Path, o.Value)
		}
	}
	if !found {
		t.Errorf("the sidecar's invented field is not in the patch: %s", r.Response.Patch)
	}
}

// The checks are those of docs/readiness.md. Each writes its answer to the log, because the
// probe does not tell reasons.
func TestReadinessIsExplainedInTheLog(t *testing.T) {
	_, says, err := replicas[0].Readyz(t.Context(), "?verbose")
	if err != nil {
		t.Fatal(err)
	}
	var checks []string
	for _, match := range regexp.MustCompile(`(?m)^\[[+-]\](\S+)`).FindAllStringSubmatch(says, -1) {
		checks = append(checks, match[1])
	}
	slices.Sort(checks)
	if diff := cmp.Diff([]string{"catalog", "certificate", "injectors", "webhook"}, checks); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
	logged, err := os.ReadFile(replicas[0].LogFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range checks {
		if !strings.Contains(string(logged), fmt.Sprintf("%q:%q", "check", check)) {
			t.Errorf("the log says nothing about %s", check)
		}
	}
}

func TestMetricsAreForAuthorizedClients(t *testing.T) {
	get := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, replicas[0].Metrics+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		httpClient := &http.Client{Transport: &http.Transport{TLSClientConfig: replicas[0].Trusting(t, "").Transport.(*http.Transport).TLSClientConfig}}
		response, err := httpClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range []string{"\nsidecarset_build_info{", "\nleader_election_master_status{name=\"" + deploy.Lease + "\"}"} {
			if response.StatusCode == http.StatusOK && !strings.Contains(string(body), metric) {
				t.Errorf("no metric %q in %d bytes", metric, len(body))
			}
		}
		return response.StatusCode
	}
	if got := get(""); got != http.StatusUnauthorized && got != http.StatusForbidden {
		t.Errorf("without a token: %d", got)
	}
	namespace := testkit.Namespace(t, api, nil)
	tokenOf := func(name string) string {
		create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		token, err := cluster.Kubectl(t.Context(), "", "-n", namespace, "create", "token", name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(token)
	}
	// A replica checks at most one unknown token of an address in a second.
	expect := func(token string, want int) {
		t.Helper()
		await.Eventually(t, fmt.Sprint("status ", want), func(context.Context) error {
			if got := get(token); got != want {
				return fmt.Errorf("status %d", got)
			}
			return nil
		})
	}
	expect(tokenOf("stranger"), http.StatusForbidden)
	token := tokenOf("scraper")
	if _, err := cluster.Kubectl(t.Context(), "", "create", "clusterrolebinding", "scraper-"+namespace,
		"--clusterrole=sidecarset-metrics-reader", "--serviceaccount="+namespace+":scraper"); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the right", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "", "auth", "can-i", "get", "/metrics", "--as=system:serviceaccount:"+namespace+":scraper")
		return err
	})
	expect(token, http.StatusOK)
}
