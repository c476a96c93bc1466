// Package cosign signs what is in a registry, and checks such signatures, as the program of that name does with a key and without
// a transparency log: https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
package cosign

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// payloadType is what the format calls what is signed.
const payloadType types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"

// signatureName is the annotation that has its signature, in base64.
const signatureName = "dev.cosignproject.cosign/signature"

// maxPayload is the most that is read of a payload, in bytes. Ours have some 250.
const maxPayload = 64 << 10

// ErrUnsigned is that there is no signature with the key. Check with errors.Is(err, cosign.ErrUnsigned).
var ErrUnsigned = errors.New("no signature with this key")

// Sign signs what the digest is of, unless there is a signature with the key already. Others' signatures stay.
func Sign(subject name.Digest, key signature.SignerVerifier, options ...remote.Option) error {
	switch err := Verify(subject, key, options...); {
	case err == nil:
		return nil
	case !errors.Is(err, ErrUnsigned):
		return err
	}
	text, signed, err := signature.SignImage(key, subject, nil)
	if err != nil {
		return fmt.Errorf("sign %s: %w", subject, err)
	}
	image, err := signatures(subject, options...)
	if err != nil {
		return err
	}
	if image == nil {
		image = mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	}
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:       static.NewLayer(text, payloadType),
		Annotations: map[string]string{signatureName: base64.StdEncoding.EncodeToString(signed)},
	})
	if err == nil {
		err = remote.Write(place(subject), image, options...)
	}
	if err != nil {
		return fmt.Errorf("sign %s: %w", subject, err)
	}
	return nil
}

// Verify reports whether one of the signatures of what the digest is of is good: made with the key, and of this digest. The
// error is [ErrUnsigned] if none is; another if the registry does not let them be read.
func Verify(subject name.Digest, key signature.Verifier, options ...remote.Option) error {
	image, err := signatures(subject, options...)
	if err != nil {
		return err
	}
	if image == nil {
		return fmt.Errorf("%s: %w: it is not signed at all", subject, ErrUnsigned)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return fmt.Errorf("signatures of %s: %w", subject, err)
	}
	bad := []error{ErrUnsigned}
	for _, d := range manifest.Layers {
		if d.MediaType != payloadType || d.Size > maxPayload {
			continue
		}
		text, err := read(image, d.Digest)
		if err != nil {
			return fmt.Errorf("signatures of %s: %w", subject, err)
		}
		err = check(subject, text, d.Annotations[signatureName], key)
		if err == nil {
			return nil
		}
		bad = append(bad, err)
	}
	return fmt.Errorf("%s: %w", subject, errors.Join(bad...))
}

// check holds one payload and its signature, in base64, against what it should be of.
func check(subject name.Digest, text []byte, signed string, key signature.Verifier) error {
	raw, err := base64.StdEncoding.DecodeString(signed)
	if err != nil {
		return err
	}
	if err := key.VerifySignature(bytes.NewReader(raw), bytes.NewReader(text)); err != nil {
		return err
	}
	var says payload.Cosign
	if err := json.Unmarshal(text, &says); err != nil {
		return err
	}
	if of := says.Image.DigestStr(); of != subject.DigestStr() {
		return fmt.Errorf("it is of %s", of)
	}
	return nil
}

// place is where the signatures are.
func place(subject name.Digest) name.Tag {
	return subject.Tag(strings.Replace(subject.DigestStr(), ":", "-", 1) + ".sig")
}

// signatures are the image whose layers are what was signed; nil if there is none.
func signatures(subject name.Digest, options ...remote.Option) (v1.Image, error) {
	image, err := remote.Image(place(subject), options...)
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("signatures of %s: %w", subject, err)
	}
	return image, nil
}

func read(image v1.Image, digest v1.Hash) ([]byte, error) {
	layer, err := image.LayerByDigest(digest)
	if err != nil {
		return nil, err
	}
	r, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r)
	return text, errors.Join(err, r.Close())
}
