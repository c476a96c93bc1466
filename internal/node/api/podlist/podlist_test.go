package podlist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

func encode(t *testing.T, obj runtime.Object) (inProtobuf, inJSON []byte) {
	t.Helper()
	types := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(types))
	var b bytes.Buffer
	require.NoError(t, protobuf.NewSerializer(types, types).Encode(obj, &b))
	text, err := json.Marshal(obj)
	require.NoError(t, err)
	return b.Bytes(), text
}

func listOf(pods int) *corev1.PodList {
	list := &corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "more"},
	}
	for i := range pods {
		list.Items = append(list.Items, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Annotations: map[string]string{"k": strings.Repeat("v", i*100)}},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}},
		})
	}
	return list
}

// TestDecode: a list that is read pod by pod has what the server sent, in both encodings; and of one that ends early, at any
// byte, it is never said that this was all.
func TestDecode(t *testing.T) {
	t.Parallel()
	whole := func(p *corev1.Pod) *corev1.Pod { return p }
	for _, n := range []int{0, 1, 7} {
		want := listOf(n)
		inProtobuf, inJSON := encode(t, want)
		want.TypeMeta = metav1.TypeMeta{}
		for _, body := range [][]byte{inProtobuf, inJSON} {
			got, err := Decode(bytes.NewReader(body), whole)
			require.NoError(t, err)
			assert.Equal(t, want, got)
			for cut := range body {
				const after = 4 // bytes of protobuf's empty fields that follow the list
				got, err := Decode(bytes.NewReader(body[:cut]), whole)
				if err == nil && cut >= len(body)-after {
					assert.Equal(t, want, got)
					continue
				}
				require.Error(t, err, "%d of %d bytes", cut, len(body))
			}
		}
	}
	_, err := Decode(strings.NewReader(`{"kind":"PodList","items":null,"metadata":{}}`), whole)
	require.NoError(t, err)
	other, _ := encode(t, &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}})
	for _, wrong := range []string{"", "null", "[]", `{"items":{}}`, `{"items":[1]}`, string(other), "k8s\x00", "k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "k8s\x00\x12\x06\x12\xff\xff\xff\xff\x0f"} {
		_, err := Decode(strings.NewReader(wrong), whole)
		assert.Error(t, err, "%q", wrong)
	}
}

// TestDecodeKeepsLittle: each pod is cut down before the next is read.
func TestDecodeKeepsLittle(t *testing.T) {
	t.Parallel()
	inProtobuf, inJSON := encode(t, listOf(20))
	for _, body := range [][]byte{inProtobuf, inJSON} {
		in, pipe := io.Pipe()
		kept := make(chan string)
		go func() {
			_, err := Decode(in, func(p *corev1.Pod) *corev1.Pod { kept <- p.Name; return &corev1.Pod{} })
			assert.NoError(t, err)
			close(kept)
		}()
		go func() { // as slowly as a body may come
			for i := range body {
				_, err := pipe.Write(body[i : i+1])
				assert.NoError(t, err)
			}
			assert.NoError(t, pipe.Close())
		}()
		for i := range 20 {
			assert.Equal(t, fmt.Sprint("p", i), <-kept)
		}
		<-kept
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("k8s\x00\x0a\x0d\x0a\x02v1\x12\x07PodList\x12\x02\x0a\x00"))
	f.Add([]byte(`{"items":[{}],"metadata":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := Decode(bytes.NewReader(body), func(p *corev1.Pod) *corev1.Pod { return p })
		if err == nil {
			assert.NotNil(t, list)
		}
	})
}
