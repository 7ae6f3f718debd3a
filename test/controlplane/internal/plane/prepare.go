package plane

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
	"github.com/sidecarset/operator/test/controlplane/stages"
)

// prepare writes every file that components read.
func (s *supervisor) prepare() error {
	o := s.o
	for _, sub := range []string{"logs", "components"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o755); err != nil {
			return err
		}
	}
	authority, err := pki.New(filepath.Join(o.Dir, "pki"))
	if err != nil {
		return err
	}
	serviceAccountKey, err := authority.ServiceAccountKey()
	if err != nil {
		return err
	}
	serving, err := authority.Serving("serving", servingNames, servingAddresses())
	if err != nil {
		return err
	}
	if s.admin, err = authority.Client("admin", "admin", "system:masters"); err != nil {
		return err
	}
	if s.client, err = newClient(authority, s.admin); err != nil {
		return err
	}
	config, err := stages.Config()
	if err != nil {
		return err
	}
	s.files = files{
		dir: o.Dir, authority: authority, serving: serving, serviceAccountKey: serviceAccountKey,
		stages:      filepath.Join(o.Dir, "components", "kwok.yaml"),
		auditPolicy: filepath.Join(o.Dir, "components", "audit-policy.yaml"),
	}
	s.info = Info{
		Dir: o.Dir, Bin: o.Bin, Version: o.Version,
		Kubeconfig: filepath.Join(o.Dir, "kubeconfig"), CAFile: authority.CertFile,
		Pid: os.Getpid(),
	}
	return errors.Join(
		os.WriteFile(s.files.stages, []byte(config), 0o644),
		os.WriteFile(s.files.auditPolicy, []byte(auditPolicy), 0o644),
	)
}

// auditPolicy logs one line per request, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

var servingNames = []string{
	"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
}

func servingAddresses() []net.IP {
	first, _, _ := net.ParseCIDR(serviceCIDR)
	first = first.To4()
	first[3]++ // the address of the Service kubernetes
	return []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, first}
}

// writeKubeconfigs writes the administrator's kubeconfig and one for each
// component, under the user whose rights the API server grants by default.
func (s *supervisor) writeKubeconfigs() error {
	var all []endpoint
	for i, name := range []string{"kube-apiserver-1", "kube-apiserver-2"}[:s.o.APIServers] {
		ch := s.find(name)
		url := serverURL("https", ch.listen[0])
		s.info.APIServers = append(s.info.APIServers, url)
		all = append(all, endpoint{[]string{"admin", "admin-2"}[i], url})
	}
	if err := writeKubeconfig(s.info.Kubeconfig, s.files.authority, s.admin, all); err != nil {
		return err
	}
	users := []struct{ component, user, group string }{
		{"kube-controller-manager", "system:kube-controller-manager", ""},
		{"kube-scheduler", "system:kube-scheduler", ""},
		{"kwok", "kwok", "system:masters"},
	}
	for _, u := range users {
		pair, err := s.files.authority.Client(u.component, u.user, u.group)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(s.files.kubeconfig(u.component), s.files.authority, pair, all[:1]); err != nil {
			return err
		}
	}
	return nil
}
