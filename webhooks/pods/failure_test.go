package pods_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/sidecarset/operator/internal/fixtures"
)

// API servers call webhooks through client-go. This is the message that their users get when
// a replica cannot decide.
func TestFailuresReachTheUser(t *testing.T) {
	set := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").
		Spec("namespaceSelector", map[string]any{"matchLabels": map[string]any{"env": "prod"}}).Map()
	server := httptest.NewServer(injector(catalogOf(t, set), &liveNamespaces{err: errors.New("connection refused")}))
	defer server.Close()

	scheme := runtime.NewScheme()
	if err := admissionv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, APIPath: "/pods", ContentConfig: rest.ContentConfig{
		NegotiatedSerializer: serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{
			Serializer: serializer.NewCodecFactory(scheme).LegacyCodec(admissionv1.SchemeGroupVersion), MediaType: "application/json",
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	envelope := request(fixtures.Pod("web").Label("app", "web").Obj())
	envelope["request"].(map[string]any)["namespace"] = "young"
	answer := &admissionv1.AdmissionReview{}
	err = client.Post().SetHeader("Content-Type", "application/json").Body(fixtures.Encode(t, envelope)).Do(t.Context()).Into(answer)
	if err == nil || !strings.Contains(err.Error(), "sidecarset: cannot tell which SidecarSets select Pod young/web: reading the labels of Namespace young: connection refused") {
		t.Errorf("the API server reads: %v", err)
	}
}
