package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Tests move clocks by hours in both directions.
const (
	backdated = 48 * time.Hour
	lifetime  = 365 * 24 * time.Hour
)

// certify writes FOLDER/NAME.crt and FOLDER/NAME.key (mode 0600), signed by FOLDER/ca.key,
// which it makes when there is none. Addresses may be IPs or host names.
func certify(arguments []string) error {
	if len(arguments) < 4 {
		return errors.New("usage: kube-control-plane certify FOLDER NAME COMMON-NAME ORGANIZATION [ADDRESS...]")
	}
	folder, name := arguments[0], arguments[1]
	authority, authorityKey, err := authorityOf(folder)
	if err != nil {
		return err
	}
	wanted := template(pkix.Name{CommonName: arguments[2]})
	if arguments[3] != "" {
		wanted.Subject.Organization = []string{arguments[3]}
	}
	wanted.KeyUsage = x509.KeyUsageDigitalSignature
	wanted.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, address := range arguments[4:] {
		if ip := net.ParseIP(address); ip != nil {
			wanted.IPAddresses = append(wanted.IPAddresses, ip)
		} else {
			wanted.DNSNames = append(wanted.DNSNames, address)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return store(folder, name, wanted, authority, key, authorityKey)
}

func template(subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system has no randomness to give
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdated), NotAfter: now.Add(lifetime),
	}
}

func authorityOf(folder string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if _, err := os.Stat(filepath.Join(folder, "ca.crt")); errors.Is(err, os.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		own := template(pkix.Name{CommonName: "hearth embedded kubernetes"})
		own.IsCA = true
		own.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
		if err := store(folder, "ca", own, own, key, key); err != nil {
			return nil, nil, err
		}
	}
	certificate, err := decode(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return nil, nil, err
	}
	encoded, err := decode(filepath.Join(folder, "ca.key"))
	if err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParseECPrivateKey(encoded)
	return authority, key, err
}

func decode(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}

func store(folder, name string, wanted, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) error {
	certificate, err := x509.CreateCertificate(rand.Reader, wanted, parent, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
	if err := os.WriteFile(filepath.Join(folder, name+".key"), private, 0o600); err != nil {
		return err
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	return os.WriteFile(filepath.Join(folder, name+".crt"), public, 0o600)
}
