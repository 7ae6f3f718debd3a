package plane

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
)

// loopback is where every server listens: a stand on a developer's machine may not be reached from
// other machines.
const loopback = "127.0.0.1"

func serverURL(scheme string, port int) string {
	return fmt.Sprintf("%s://%s:%d", scheme, loopback, port)
}

// serviceCIDR is the range of Service addresses. It does not overlap with the Pods' range, nor
// with the addresses of a namespace that package netns makes.
const serviceCIDR = "10.96.0.0/16"

// podCIDR is the range from which kwok takes the invented addresses of Pods.
const podCIDR = "10.128.0.0/9"

var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}

// component says how one process is run. Its flags depend on the ports that were free when it
// started.
type component struct {
	name    string // unique in the stand, as "kube-apiserver-2"
	program string // its file in the bin directory
	ports   int    // how many it listens on
	flags   func(ports []int) []string
	// health is the URL that answers 200 when the component is ready to work.
	health func(ports []int) string
}

// files are the paths in the flags of components; all exist before any starts.
type files struct {
	dir               string
	authority         *pki.Authority
	serving           pki.Pair
	serviceAccountKey string
	stages            string
	auditPolicy       string
}

func (f files) path(elem ...string) string {
	return filepath.Join(append([]string{f.dir}, elem...)...)
}

// kubeconfig is the file with which a component calls the first API server.
func (f files) kubeconfig(component string) string {
	return f.path("components", component+".kubeconfig")
}

func etcd(f files) component {
	return component{
		name: "etcd", program: "etcd", ports: 2,
		flags: func(ports []int) []string {
			client, peer := serverURL("http", ports[0]), serverURL("http", ports[1])
			return []string{
				"--name=stand",
				"--data-dir=" + f.path("etcd"),
				"--listen-client-urls=" + client,
				"--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer,
				"--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=stand=" + peer,
				"--quota-backend-bytes=" + strconv.Itoa(8<<30), // thousands of Pods, each with many revisions
				"--unsafe-no-fsync",                            // data need not survive a power cut
				"--log-level=warn",
			}
		},
		health: func(ports []int) string { return serverURL("http", ports[0]) + "/readyz" },
	}
}

func apiServer(o *Options, f files, name, etcdURL string) component {
	return component{
		name: name, program: "kube-apiserver", ports: 1,
		flags: func(ports []int) []string {
			flags := []string{
				"--etcd-servers=" + etcdURL,
				"--bind-address=" + loopback,
				"--advertise-address=" + loopback,
				"--secure-port=" + strconv.Itoa(ports[0]),
				"--endpoint-reconciler-type=none", // a loopback address may not be an endpoint
				"--tls-cert-file=" + f.serving.CertFile,
				"--tls-private-key-file=" + f.serving.KeyFile,
				"--client-ca-file=" + f.authority.CertFile,
				"--authorization-mode=Node,RBAC",
				"--allow-privileged=true",
				"--service-cluster-ip-range=" + serviceCIDR,
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + f.serviceAccountKey,
				"--service-account-signing-key-file=" + f.serviceAccountKey,
				"--enable-aggregator-routing=true", // webhooks behind Services, without kube-proxy
				"--kubelet-preferred-address-types=InternalIP",
				"--shutdown-delay-duration=0s",
			}
			if !o.Full {
				// Without a controller-manager, no namespace gets the ServiceAccount that every
				// Pod needs.
				flags = append(flags, "--disable-admission-plugins=ServiceAccount")
			}
			if o.Audit {
				flags = append(flags,
					"--audit-policy-file="+f.auditPolicy,
					"--audit-log-path="+f.path("logs", name+".audit.log"))
			}
			return flags
		},
		health: func(ports []int) string { return serverURL("https", ports[0]) + "/readyz" },
	}
}

func controllerManager(f files) component {
	const name = "kube-controller-manager"
	return component{
		name: name, program: name, ports: 1,
		flags: func(ports []int) []string {
			return append(secureServer(f, name, ports[0]),
				"--use-service-account-credentials=true",
				"--root-ca-file="+f.authority.CertFile,
				"--service-account-private-key-file="+f.serviceAccountKey,
				"--cluster-signing-cert-file="+f.authority.CertFile,
				"--cluster-signing-key-file="+f.authority.KeyFile,
			)
		},
		health: func(ports []int) string { return serverURL("https", ports[0]) + "/healthz" },
	}
}

func scheduler(f files) component {
	const name = "kube-scheduler"
	return component{
		name: name, program: name, ports: 1,
		flags:  func(ports []int) []string { return secureServer(f, name, ports[0]) },
		health: func(ports []int) string { return serverURL("https", ports[0]) + "/healthz" },
	}
}

// secureServer returns the flags that controller-manager and scheduler share. There is one of
// each, and they use no Lease, because a lost API server must not end them.
func secureServer(f files, name string, port int) []string {
	return []string{
		"--kubeconfig=" + f.kubeconfig(name),
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + f.serving.CertFile,
		"--tls-private-key-file=" + f.serving.KeyFile,
		"--leader-elect=false",
		"--kube-api-qps=500", // a large test would measure the defaults (20 to 50)
		"--kube-api-burst=1000",
	}
}

func kwok(f files) component {
	return component{
		name: "kwok", program: "kwok", ports: 1,
		flags: func(ports []int) []string {
			return []string{
				"--kubeconfig=" + f.kubeconfig("kwok"),
				"--config=" + f.stages,
				// kwok manages only these nodes, because a real kubelet may join the same stand.
				"--manage-nodes-with-annotation-selector=" + fakeNodeAnnotation + "=fake",
				"--manage-all-nodes=false",
				"--node-lease-duration-seconds=40",
				"--node-ip=", // a fake node has no address
				"--cidr=" + podCIDR,
				"--server-address=" + fmt.Sprintf("%s:%d", loopback, ports[0]),
			}
		},
		health: func(ports []int) string { return serverURL("http", ports[0]) + "/healthz" },
	}
}
