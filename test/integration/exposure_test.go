package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

// listener is a replica, and the servers that it must have.
type listener struct {
	replica *deploy.Replica
	want    []string
}

// A replica listens where its flags say and nowhere else.
func TestAReplicaListensOnlyOnItsPorts(t *testing.T) {
	tests := map[string]listener{
		"with all roles": {replicas[0], []string{"webhook", "probes", "metrics"}},
	}
	if stand.Namespace() {
		tests["of role webhook"] = listener{operator.StartApart(t, 4, "--role=webhook"), []string{"webhook", "probes", "metrics"}}
		tests["of role controller"] = listener{operator.StartApart(t, 5, "--role=controller"), []string{"probes", "metrics"}}
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			addresses := map[string]string{
				"webhook": tc.replica.Webhook,
				"probes":  strings.TrimPrefix(tc.replica.Probes, "http://"),
				"metrics": strings.TrimPrefix(tc.replica.Metrics, "https://"),
			}
			var want []string
			for _, server := range tc.want {
				want = append(want, addresses[server])
			}
			slices.Sort(want)
			await.Eventually(t, "its servers", func(context.Context) error {
				got, err := listening(tc.replica.Pid())
				if diff := cmp.Diff(want, got); err == nil && diff != "" {
					err = fmt.Errorf("listening on (-want +got):\n%s", diff)
				}
				return err
			})
		})
	}
}

// listening returns the TCP addresses that a process accepts connections on and
// the UDP addresses that it is bound to, sorted.
func listening(pid int) ([]string, error) {
	process := filepath.Join("/proc", strconv.Itoa(pid))
	descriptors, err := filepath.Glob(filepath.Join(process, "fd", "*"))
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(descriptor); err == nil {
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	var found []string
	// 0A is LISTEN; a UDP socket that is bound to a port and not connected is 07.
	for table, state := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		file, err := os.Open(filepath.Join(process, "net", table))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			columns := strings.Fields(lines.Text()) // sl local remote state queues timer retransmits uid timeout inode
			if len(columns) < 10 || columns[3] != state || !own[columns[9]] {
				continue
			}
			address, err := parseAddress(columns[1])
			if err != nil {
				return nil, err
			}
			found = append(found, address)
		}
	}
	slices.Sort(found)
	return found, nil
}

// parseAddress reads an address in the form of /proc/net/tcp: the words of an IP address in
// the machine's byte order, and a port.
func parseAddress(text string) (string, error) {
	words, port, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || len(words)%8 != 0 {
		return "", fmt.Errorf("cannot read the address %q", text)
	}
	var ip net.IP
	for i := 0; i < len(words); i += 8 {
		word, err := strconv.ParseUint(words[i:i+8], 16, 32)
		if err != nil {
			return "", fmt.Errorf("cannot read the address %q", text)
		}
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24)) // little-endian
	}
	return net.JoinHostPort(ip.String(), strconv.FormatUint(number, 10)), nil
}

// The API server gives the operator's requests seats of their own.
func TestTheOperatorsRequestsUseItsFlowSchema(t *testing.T) {
	token, err := operator.Clients.CoreV1().ServiceAccounts(deploy.Namespace).CreateToken(t.Context(), deploy.ServiceAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(cluster.Config())
	config.BearerToken = token.Status.Token
	ours, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.CloseIdleConnections()
	tests := map[string]struct{ path, schema, level string }{
		"a Namespace that a Pod waits for": {"/api/v1/namespaces/default", "sidecarset-operator", "sidecarset-operator"},
		"discovery":                        {"/apis", "sidecarset-operator", "sidecarset-operator"},
		"the leader's Lease": {"/apis/coordination.k8s.io/v1/namespaces/" + deploy.Namespace + "/leases/" + deploy.Lease,
			"sidecarset-operator-leases", "leader-election"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var schema flowcontrolv1.FlowSchema
			var level flowcontrolv1.PriorityLevelConfiguration
			if err := errors.Join(
				api.Get(t.Context(), client.ObjectKey{Name: tc.schema}, &schema),
				api.Get(t.Context(), client.ObjectKey{Name: tc.level}, &level),
			); err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := ours.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("%s", response.Status)
			}
			got := response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) + " " + response.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
			if want := string(schema.UID) + " " + string(level.UID); got != want {
				t.Errorf("schema and priority level %s, want %s", got, want)
			}
		})
	}
}
