package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// directory is a directory of mounted files: tls.crt, tls.key and ca.crt. A replica reads them every Times.Poll and does not watch
// them: a kubelet takes about a minute to update a volume, and it replaces a link, which a file watch does not follow.
type directory struct{ path, serverName string }

func (d *directory) String() string { return "directory " + d.path }

// The names of the parts of a supplied key pair, as files or in a Secret.
const (
	suppliedCertKey = "tls.crt"
	suppliedKeyKey  = "tls.key"
	suppliedCAKey   = "ca.crt"
)

// load reads the three files. A kubelet replaces all files of a volume together, by pointing the link ..data to another directory,
// so load reads from where the link points now. If a program writes the files one by one, the check that they belong together fails
// until the last is written.
func (d *directory) load(context.Context) (*material, error) {
	dir := d.path
	if data, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = data
	}
	files := map[string][]byte{}
	for _, name := range []string{suppliedCertKey, suppliedKeyKey, suppliedCAKey} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("reading the serving certificate: %w", err)
		}
		files[name] = content
	}
	return supplied(d, files, d.serverName)
}

// supplied checks that the parts of a key pair belong together, without regard to the time, and that none is truncated.
func supplied(from fmt.Stringer, files map[string][]byte, serverName string) (*material, error) {
	fail := func(format string, args ...any) (*material, error) {
		return nil, fmt.Errorf("reading the serving certificate from %s: %w", from, fmt.Errorf(format, args...))
	}
	pair, err := tls.X509KeyPair(files[suppliedCertKey], files[suppliedKeyKey])
	if err != nil {
		return fail("%s and %s are not a certificate and its key: %w", suppliedCertKey, suppliedKeyKey, err)
	}
	cas, err := ParseBundle(files[suppliedCAKey])
	if err == nil && len(cas) == 0 {
		err = errors.New("there is no certificate")
	}
	if err != nil {
		return fail("reading %s: %w", suppliedCAKey, err)
	}
	now := withinLife(pair.Leaf, time.Now())
	signed := func(ca *x509.Certificate) bool {
		err = Verify(&pair, encodeCertificate(ca), serverName, now)
		return err == nil
	}
	at := slices.IndexFunc(cas, signed)
	if at < 0 {
		return fail("checking %s against %s: %w", suppliedCertKey, suppliedCAKey, err)
	}
	// The material is as old as its youngest certificate: when a file was written says when a volume was mounted.
	m := &material{cas: cas, signing: KeyPair{Certificate: cas[at]}, leaf: &pair, written: pair.Leaf.NotBefore}
	for _, ca := range cas {
		if ca.NotBefore.After(m.written) {
			m.written = ca.NotBefore
		}
	}
	return m, nil
}
