package deploy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
)

// Leaf returns the certificate that the replica serves, whether API servers trust it or
// not.
func (r *Replica) Leaf(ctx context.Context) (*x509.Certificate, error) {
	dialer := &tls.Dialer{Config: &tls.Config{ServerName: ServerName, InsecureSkipVerify: true}} // to look at the certificate, not to rely on it
	conn, err := dialer.DialContext(ctx, "tcp", r.Webhook)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
