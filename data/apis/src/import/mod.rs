//! Imports API descriptions in other formats as [`ApiDocument`](super::ApiDocument)s.

mod apibank;
mod body;
mod discarded;
mod examples;
mod listing;
mod mcp;
mod merge;
mod openapi;
mod operations;
mod reference;
#[cfg(test)]
mod reference_tests;
mod schema;
mod stabletoolbench;
mod swagger;
#[cfg(test)]
mod tests;

pub use apibank::{ApiBankSet, apibank_documents, import_apibank};
pub use discarded::LeftOut;
pub use examples::{ExampleResponses, import_openapi_examples, import_openapi_examples_file};
pub use mcp::{import_mcp_file, import_mcp_tools};
pub use openapi::{
    ImportedApis, OpenApiOptions, OperationNames, RequestBodies, import_openapi,
    import_openapi_file,
};
pub use operations::{
    ApiOperation, LocatedParameter, OperationBody, ParameterLocation, ParameterStyle,
    import_openapi_operations, import_openapi_operations_file,
};
pub use stabletoolbench::import_stabletoolbench;

pub(super) use stabletoolbench::documents_with_locations;
