//! A descriptor of cuDNN's backend API: set attributes, then finalise.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ptr;

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind,
    cudnnBackendDescriptor_t as Raw, cudnnBackendDescriptorType_t as Type, cudnnDataType_t,
    cudnnHandle_t, cudnnStatus_t,
};

/// A cuDNN status other than success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: cudnnStatus_t,
    /// The library's message.
    pub(super) reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.reason)
    }
}

/// `Ok` for success, otherwise the status and the library's message.
pub(super) fn check_status(status: cudnnStatus_t) -> Result<(), Refusal> {
    if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text = [0 as c_char; 512];
    // SAFETY: the library writes at most this many bytes, including a final zero.
    unsafe { sys::cudnnGetLastErrorString(text.as_mut_ptr(), text.len()) };
    let bytes: Vec<u8> = text
        .iter()
        .map(|&c| c as u8)
        .take_while(|&c| c != 0)
        .collect();
    Err(Refusal {
        status,
        reason: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// An address: on the device for a tensor, on the host for a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Address(pub(super) u64);

/// A value of an attribute.
///
/// # Safety
///
/// `KIND` is the library's type for a value of these bytes.
pub(super) unsafe trait Value: Copy {
    const KIND: Kind;
}

// SAFETY: cudnn_graph.h documents the attribute types: 64-bit integers, one byte for a boolean,
// pointers, and C enumerations.
unsafe impl Value for i64 {
    const KIND: Kind = Kind::CUDNN_TYPE_INT64;
}
// SAFETY: as above.
unsafe impl Value for i32 {
    const KIND: Kind = Kind::CUDNN_TYPE_INT32;
}
// SAFETY: as above.
unsafe impl Value for bool {
    const KIND: Kind = Kind::CUDNN_TYPE_BOOLEAN;
}
// SAFETY: as above.
unsafe impl Value for Address {
    const KIND: Kind = Kind::CUDNN_TYPE_VOID_PTR;
}
// SAFETY: as above.
unsafe impl Value for cudnnHandle_t {
    const KIND: Kind = Kind::CUDNN_TYPE_HANDLE;
}
// SAFETY: as above.
unsafe impl Value for f64 {
    const KIND: Kind = Kind::CUDNN_TYPE_DOUBLE;
}
// SAFETY: as above.
unsafe impl Value for u8 {
    const KIND: Kind = Kind::CUDNN_TYPE_CHAR;
}
// SAFETY: as above.
unsafe impl Value for cudnnDataType_t {
    const KIND: Kind = Kind::CUDNN_TYPE_DATA_TYPE;
}
// SAFETY: as above.
unsafe impl Value for sys::cudnnPointwiseMode_t {
    const KIND: Kind = Kind::CUDNN_TYPE_POINTWISE_MODE;
}
// SAFETY: as above.
unsafe impl Value for sys::cudnnReduceTensorOp_t {
    const KIND: Kind = Kind::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
}
// SAFETY: as above.
unsafe impl Value for sys::cudnnBackendHeurMode_t {
    const KIND: Kind = Kind::CUDNN_TYPE_HEUR_MODE;
}

/// A descriptor, destroyed on drop.
#[derive(Debug)]
pub(super) struct Descriptor(Raw);

// SAFETY: descriptors are plain memory of the library with a single owner; cuDNN allows their use
// from any thread, one at a time.
unsafe impl Send for Descriptor {}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created by the library, destroyed once.
        unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

impl Descriptor {
    pub(super) fn new(of: Type) -> Result<Self, Refusal> {
        let mut raw = ptr::null_mut();
        // SAFETY: the library writes the descriptor's address to this pointer.
        check_status(unsafe { sys::cudnnBackendCreateDescriptor(of, &raw mut raw) })?;
        Ok(Self(raw))
    }

    pub(super) fn set<T: Value>(&self, name: Name, values: &[T]) -> Result<(), Refusal> {
        self.set_raw(name, T::KIND, values.len(), values.as_ptr().cast())
    }

    /// Sets an attribute whose values are descriptors.
    pub(super) fn set_parts(&self, name: Name, parts: &[&Self]) -> Result<(), Refusal> {
        let raw: Vec<Raw> = parts.iter().map(|part| part.0).collect();
        let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        self.set_raw(name, kind, raw.len(), raw.as_ptr().cast())
    }

    fn set_raw(
        &self,
        name: Name,
        kind: Kind,
        count: usize,
        values: *const c_void,
    ) -> Result<(), Refusal> {
        let count = count as i64;
        // SAFETY: the descriptor is live; `values` has this number of values of the type, which are
        // copied before the call returns.
        check_status(unsafe { sys::cudnnBackendSetAttribute(self.0, name, kind, count, values) })
    }

    pub(super) fn finalize(self) -> Result<Self, Refusal> {
        // SAFETY: the descriptor is live.
        check_status(unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }

    /// Reads an integer attribute.
    pub(super) fn integer(&self, name: Name) -> Result<i64, Refusal> {
        let (mut value, mut count) = (0i64, 0i64);
        // SAFETY: the library writes at most one integer, and the count.
        check_status(unsafe {
            let buffer = (&raw mut value).cast();
            let kind = Kind::CUDNN_TYPE_INT64;
            sys::cudnnBackendGetAttribute(self.0, name, kind, 1, &raw mut count, buffer)
        })?;
        Ok(value)
    }

    /// Reads a string attribute.
    pub(super) fn text(&self, name: Name) -> Result<Vec<u8>, Refusal> {
        let kind = Kind::CUDNN_TYPE_CHAR;
        let mut count = 0i64;
        // SAFETY: for zero elements the library writes only the count.
        check_status(unsafe {
            sys::cudnnBackendGetAttribute(
                self.0,
                name,
                kind,
                0,
                &raw mut count,
                std::ptr::null_mut(),
            )
        })?;
        let mut text = vec![0u8; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the library writes at most this many characters, and the count.
        check_status(unsafe {
            let buffer = text.as_mut_ptr().cast();
            sys::cudnnBackendGetAttribute(self.0, name, kind, count, &raw mut count, buffer)
        })?;
        text.truncate(usize::try_from(count).unwrap_or(0));
        Ok(text)
    }

    /// Reads an attribute whose values are descriptors of one type, at most `most` of them.
    pub(super) fn parts(&self, name: Name, of: Type, most: usize) -> Result<Vec<Self>, Refusal> {
        // The library fills descriptors that the caller creates.
        let mut parts: Vec<Self> = (0..most).map(|_| Self::new(of)).collect::<Result<_, _>>()?;
        let mut raw: Vec<Raw> = parts.iter().map(|part| part.0).collect();
        let mut count = 0i64;
        // SAFETY: the library fills at most this many descriptors, and writes the count.
        check_status(unsafe {
            let buffer = raw.as_mut_ptr().cast();
            let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
            sys::cudnnBackendGetAttribute(self.0, name, kind, most as i64, &raw mut count, buffer)
        })?;
        parts.truncate(usize::try_from(count).unwrap_or(0));
        Ok(parts)
    }

    pub(super) fn raw(&self) -> Raw {
        self.0
    }
}
