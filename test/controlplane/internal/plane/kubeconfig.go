package plane

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
)

// endpoint is one API server, and the name of its context.
type endpoint struct {
	context, url string
}

// writeKubeconfig writes a kubeconfig with a context for each API server. The first one is the
// current context. Certificates are embedded, so the file can be copied. It is JSON, which is
// also YAML, so every reader of kubeconfigs accepts it.
func writeKubeconfig(path string, authority *pki.Authority, user pki.Pair, servers []endpoint) error {
	ca, err := os.ReadFile(authority.CertFile)
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(user.CertFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(user.KeyFile)
	if err != nil {
		return err
	}
	type object = map[string]any
	var clusters, contexts []object
	for _, s := range servers {
		clusters = append(clusters, object{"name": s.context, "cluster": object{
			"server": s.url, "certificate-authority-data": ca,
		}})
		contexts = append(contexts, object{"name": s.context, "context": object{
			"cluster": s.context, "user": "user",
		}})
	}
	text, err := json.MarshalIndent(object{
		"apiVersion": "v1", "kind": "Config",
		"clusters": clusters, "contexts": contexts, "current-context": servers[0].context,
		"users": []object{{"name": "user", "user": object{
			"client-certificate-data": cert, "client-key-data": key,
		}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}
